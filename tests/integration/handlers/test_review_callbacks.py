"""Callbacks of a reviewer elsewhere: heard once, in time, and never by a task that sleeps on."""

from __future__ import annotations

import threading

import pytest

from shared.core.errors import ConflictError, InvalidError, UnauthorizedError
from shared.core.webhooks import make_secret
from tests.integration.handlers.asking import (
    GOOD,
    asking_bucket,
    call_back,
    end_wait,
    register,
    states,
    step_of,
)
from tests.support.handlers import Stand
from tests.support.reviewer import Asked, Reviewer, says

pytestmark = pytest.mark.databases("mariadb")


@pytest.mark.databases("sqlite", "mariadb")
def test_answer_by_callback(stand: Stand, reviewer: Reviewer) -> None:
    bucket = asking_bucket(stand, reviewer)
    put = stand.put(bucket, "a.txt", GOOD)
    assert stand.work(put.task_id) == "scheduled"
    # The lease is given back, no attempt is counted, nothing can be read.
    task = stand.task(put.task_id)
    assert (task["attempt"], task["owner"]) == (0, None)
    assert states(stand, put.version_id) == ("open", "reviewing")
    assert step_of(stand, put).outcome == "waiting"

    call_back(stand, reviewer, put, {"outcome": "pass"})
    assert stand.state(put.task_id) == "pending"
    assert stand.work(put.task_id) == "completed"
    assert states(stand, put.version_id) == ("passed", "pending")
    assert step_of(stand, put).answered_by == "callback:msg-1"
    assert len(reviewer.asked) == 1
    # It is a verdict on the content.
    stand.work_all("upload")
    assert stand.put(bucket, "b.txt", GOOD).instant


def test_repeated_callback_answers_the_same_and_changes_nothing(
    stand: Stand, reviewer: Reviewer
) -> None:
    put = stand.put(asking_bucket(stand, reviewer), "a.txt", GOOD)
    stand.work(put.task_id)
    first = call_back(stand, reviewer, put, {"outcome": "pass"})
    ended_at = step_of(stand, put).ended_at
    # Under the same id also another text is the same message.
    assert call_back(stand, reviewer, put, {"outcome": "reject"}) == first
    assert step_of(stand, put).ended_at == ended_at
    stand.work(put.task_id)
    assert call_back(stand, reviewer, put, {"outcome": "pass"}) == first
    assert states(stand, put.version_id) == ("passed", "pending")


def test_second_answer_is_refused(stand: Stand, reviewer: Reviewer) -> None:
    put = stand.put(asking_bucket(stand, reviewer), "a.txt", GOOD)
    stand.work(put.task_id)
    call_back(stand, reviewer, put, {"outcome": "pass"})
    with pytest.raises(ConflictError) as caught:
        call_back(stand, reviewer, put, {"outcome": "reject"}, message_id="msg-2")
    assert caught.value.code == "review_step_answered"
    assert step_of(stand, put).outcome == "pass"


def test_late_callback_changes_nothing(stand: Stand, reviewer: Reviewer) -> None:
    put = stand.put(asking_bucket(stand, reviewer), "a.txt", GOOD)
    stand.work(put.task_id)
    end_wait(stand)
    with pytest.raises(ConflictError) as caught:
        call_back(stand, reviewer, put, {"outcome": "pass"})
    assert caught.value.code == "review_step_late"
    assert stand.state(put.task_id) == "scheduled"
    assert stand.work(put.task_id) == "completed"
    assert states(stand, put.version_id) == ("rejected", "blocked")
    with pytest.raises(ConflictError):
        call_back(stand, reviewer, put, {"outcome": "pass"})
    assert states(stand, put.version_id) == ("rejected", "blocked")


def test_callback_after_a_delete_changes_nothing(stand: Stand, reviewer: Reviewer) -> None:
    bucket = asking_bucket(stand, reviewer)
    put = stand.put(bucket, "a.txt", GOOD)
    stand.work(put.task_id)
    stand.remove(bucket, "a.txt")
    assert stand.state(put.task_id) == "cancelled"
    with pytest.raises(ConflictError) as caught:
        call_back(stand, reviewer, put, {"outcome": "pass"})
    assert caught.value.code == "review_over"
    assert step_of(stand, put).outcome == "waiting"


@pytest.mark.parametrize("age_seconds", [-301.0, 301.0])
def test_old_or_early_callback_is_refused(
    stand: Stand, reviewer: Reviewer, age_seconds: float
) -> None:
    put = stand.put(asking_bucket(stand, reviewer), "a.txt", GOOD)
    stand.work(put.task_id)
    with pytest.raises(UnauthorizedError):
        call_back(stand, reviewer, put, {"outcome": "pass"}, age_seconds=age_seconds)
    assert step_of(stand, put).outcome == "waiting"


def test_callback_under_another_secret_is_refused(stand: Stand, reviewer: Reviewer) -> None:
    put = stand.put(asking_bucket(stand, reviewer), "a.txt", GOOD)
    stand.work(put.task_id)
    reviewer.secrets = [make_secret()]
    with pytest.raises(UnauthorizedError):
        call_back(stand, reviewer, put, {"outcome": "pass"})
    assert step_of(stand, put).outcome == "waiting"
    # The new secret is in use as soon as it is registered.
    register(stand, reviewer)
    call_back(stand, reviewer, put, {"outcome": "pass"})
    assert step_of(stand, put).outcome == "pass"


def test_answer_to_one_question_is_none_to_another(stand: Stand, reviewer: Reviewer) -> None:
    """What is signed names its step: a copy of it lets no other content pass."""
    bucket = asking_bucket(stand, reviewer)
    good, bad = stand.put(bucket, "a.txt", GOOD), stand.put(bucket, "b.txt", GOOD + b" Or not.")
    for put in (good, bad):
        stand.work(put.task_id)
    with pytest.raises(InvalidError) as caught:
        call_back(stand, reviewer, bad, {"outcome": "pass", "step_id": step_of(stand, good).id})
    assert caught.value.code == "review_step_mismatch"
    with pytest.raises(InvalidError):
        call_back(stand, reviewer, bad, {"outcome": "pass", "step_id": None})
    assert states(stand, bad.version_id) == ("open", "reviewing")
    assert step_of(stand, bad).outcome == "waiting"


@pytest.mark.parametrize("document", [{}, {"outcome": "maybe"}, {"outcome": "retry"}])
def test_callback_that_is_no_answer(
    stand: Stand, reviewer: Reviewer, document: dict[str, str]
) -> None:
    put = stand.put(asking_bucket(stand, reviewer), "a.txt", GOOD)
    stand.work(put.task_id)
    with pytest.raises(InvalidError):
        call_back(stand, reviewer, put, document)
    assert step_of(stand, put).outcome == "waiting"


def test_callback_before_the_question_is_answered(stand: Stand, reviewer: Reviewer) -> None:
    """A reviewer may be faster with its callback than with its 202."""
    put = stand.put(asking_bucket(stand, reviewer), "a.txt", GOOD)

    def script(_asked: Asked) -> tuple[int, object]:
        call_back(stand, reviewer, put, {"outcome": "pass"})
        return 202, {}

    reviewer.script = script
    assert stand.work(put.task_id) == "completed"
    assert states(stand, put.version_id) == ("passed", "pending")


@pytest.mark.databases("sqlite", "mariadb")
def test_callback_between_the_last_look_and_the_snooze(stand: Stand, reviewer: Reviewer) -> None:
    """The wake-up finds a task that still runs; the snooze looks again under the row's lock."""
    put = stand.put(asking_bucket(stand, reviewer), "a.txt", GOOD)
    execution = stand.claim(put.task_id)
    kind = execution.kind
    assert kind is not None
    answer = stand.handler(kind.name)(execution, kind.load(execution.task.payload))
    call_back(stand, reviewer, put, {"outcome": "pass"})
    assert stand.state(put.task_id) == "running"
    stand.bench.answers.settle(execution, answer)
    assert stand.state(put.task_id) == "pending"
    assert stand.work(put.task_id) == "completed"


@pytest.mark.databases("sqlite", "mariadb")
def test_callback_and_snooze_at_the_same_moment(stand: Stand, reviewer: Reviewer) -> None:
    """Whichever of the two transactions is first, the task never sleeps with its answer there."""
    bucket = asking_bucket(stand, reviewer)
    for turn in range(6):
        put = stand.put(bucket, f"{turn}.txt", b"text %d" % turn)
        execution = stand.claim(put.task_id)
        kind = execution.kind
        assert kind is not None
        answer = stand.handler(kind.name)(execution, kind.load(execution.task.payload))
        barrier = threading.Barrier(2)

        def call(put=put, barrier=barrier) -> None:  # type: ignore[no-untyped-def]
            barrier.wait(5)
            call_back(stand, reviewer, put, {"outcome": "pass"})

        thread = threading.Thread(target=call)
        thread.start()
        barrier.wait(5)
        stand.bench.answers.settle(execution, answer)
        thread.join(20)
        assert stand.state(put.task_id) == "pending"


def test_lost_callback_is_found_by_asking_again(stand: Stand, reviewer: Reviewer) -> None:
    put = stand.put(asking_bucket(stand, reviewer, has_status=True), "a.txt", GOOD)
    assert stand.work(put.task_id) == "scheduled"
    assert stand.work(put.task_id) == "scheduled"
    reviewer.status = says("reject", "bad")
    assert stand.work(put.task_id) == "completed"
    assert states(stand, put.version_id) == ("rejected", "blocked")
    step = step_of(stand, put)
    assert step.answered_by == "poll"
    assert [one.method for one in reviewer.asked] == ["POST", "GET", "GET"]
    assert reviewer.asked[1].path == f"/steps/{step.id}"
