"""A reviewer elsewhere: asked and heard at once, by callback, by asking again, or not in time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa

from services.review.resting import Rests
from shared.catalog.models import ReviewStep, utc_now
from shared.catalog.webhook_reviewers import delete_reviewer
from shared.core.errors import ConflictError, InvalidError, UnauthorizedError
from shared.core.webhooks import make_secret
from shared.outbox.manual import retry
from tests.integration.handlers.asking import (
    GOOD,
    asking_bucket,
    call_back,
    register,
    step_of,
)
from tests.support.eventually import eventually
from tests.support.handlers import TENANT, Stand
from tests.support.reviewer import Asked, Reviewer, later, running_reviewer, says

pytestmark = pytest.mark.databases("mariadb")


@pytest.fixture
def reviewer() -> Iterator[Reviewer]:
    with running_reviewer() as made:
        yield made


def end_wait(stand: Stand) -> None:
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(ReviewStep).values(deadline_at=utc_now(-1)))


def states(stand: Stand, version_id: int) -> tuple[str, str]:
    return stand.review_of(version_id).state, stand.version(version_id).state


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("pass", ("passed", "pending")),
        ("reject", ("rejected", "blocked")),
        ("doubtful", ("doubtful", "reviewing")),
    ],
)
def test_answer_at_once(
    stand: Stand, reviewer: Reviewer, outcome: str, expected: tuple[str, str]
) -> None:
    reviewer.script = says(outcome, "seen")
    put = stand.put(asking_bucket(stand, reviewer), "a.txt", GOOD)
    assert stand.work(put.task_id) == "completed"
    assert states(stand, put.version_id) == expected
    step = step_of(stand, put)
    assert (step.outcome, step.detail, step.answered_by) == (outcome, "seen", "response")
    (asked,) = reviewer.asked
    version = stand.version(put.version_id)
    question = asked.question
    assert (question["sha256"], question["size"]) == (version.sha256, version.size_bytes)
    assert question["content_type"] == "text/plain"
    assert question["step_id"] == step.id
    assert question["content_path"].startswith(f"/v1/review-content/{step.id}?expires=")
    assert question["callback_path"] == f"/v1/review-callbacks/{step.id}"
    assert reviewer.forged == 0


def test_cheap_step_that_rejects_asks_nobody(stand: Stand, reviewer: Reviewer) -> None:
    bucket = asking_bucket(stand, reviewer, reject_keywords=["harmless"])
    put = stand.put(bucket, "a.txt", GOOD)
    assert stand.work(put.task_id) == "completed"
    assert states(stand, put.version_id) == ("rejected", "blocked")
    assert reviewer.asked == []


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


@pytest.mark.parametrize("document", [{}, [], {"outcome": "maybe"}, {"outcome": "retry"}])
def test_callback_that_is_no_answer(stand: Stand, reviewer: Reviewer, document: object) -> None:
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


@pytest.mark.parametrize("script", [lambda _: (500, {}), lambda _: (404, {}), lambda _: (200, [])])
def test_status_that_says_nothing_ends_no_wait(
    stand: Stand, reviewer: Reviewer, script: object
) -> None:
    put = stand.put(asking_bucket(stand, reviewer, has_status=True), "a.txt", GOOD)
    stand.work(put.task_id)
    reviewer.status = script  # type: ignore[assignment]
    assert stand.work(put.task_id) == "scheduled"
    assert step_of(stand, put).outcome == "waiting"


@pytest.mark.parametrize(
    ("fail_mode", "expected"),
    [
        ("closed", ("rejected", "blocked")),
        ("open", ("passed", "pending")),
        ("human", ("doubtful", "reviewing")),
    ],
)
def test_nobody_answers_in_time(
    stand: Stand, reviewer: Reviewer, fail_mode: str, expected: tuple[str, str]
) -> None:
    put = stand.put(asking_bucket(stand, reviewer, fail_mode=fail_mode), "a.txt", GOOD)
    assert stand.work(put.task_id) == "scheduled"
    end_wait(stand)
    assert stand.work(put.task_id) == "completed"
    assert states(stand, put.version_id) == expected
    assert step_of(stand, put).detail == "no answer in time"


@pytest.mark.parametrize(
    "answer", [(400, {}), (200, {"outcome": "fine"}), (200, b"<html>"), (302, {}), (204, {})]
)
def test_answer_that_is_none_leaves_it_to_the_fail_mode(
    stand: Stand, reviewer: Reviewer, answer: tuple[int, object]
) -> None:
    reviewer.script = lambda _asked: answer
    put = stand.put(asking_bucket(stand, reviewer, fail_mode="human"), "a.txt", GOOD)
    assert stand.work(put.task_id) == "completed"
    assert states(stand, put.version_id) == ("doubtful", "reviewing")
    assert step_of(stand, put).outcome == "error"


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_reviewer_that_is_busy_is_asked_again_under_the_same_id(
    stand: Stand, reviewer: Reviewer, status: int
) -> None:
    reviewer.script = lambda _asked: (status, {})
    put = stand.put(asking_bucket(stand, reviewer), "a.txt", GOOD)
    assert stand.work(put.task_id) == "scheduled"
    assert stand.task(put.task_id)["attempt"] == 1
    assert step_of(stand, put).outcome == "retry"
    reviewer.script = says("pass")
    assert stand.work(put.task_id) == "completed"
    first, second = reviewer.asked
    assert first.message_id == second.message_id


def test_reviewer_that_is_away_fails_by_the_policy_and_may_be_asked_again(
    stand: Stand, reviewer: Reviewer
) -> None:
    reviewer.script = lambda _asked: (500, {})
    assert stand.review.outside is not None
    patient = replace(stand.review.outside, rests=Rests(failures=100))
    stand.review = replace(stand.review, outside=patient)
    put = stand.put(asking_bucket(stand, reviewer), "a.txt", GOOD)
    while stand.work(put.task_id) != "failed":
        stand.bench.set(put.task_id or 0, state="pending")
    assert states(stand, put.version_id) == ("rejected", "blocked")
    retry(stand.bench.context, put.task_id or 0, by="ann")
    assert step_of(stand, put).ask_id is None
    reviewer.script = later
    assert stand.work(put.task_id) == "scheduled"
    call_back(stand, reviewer, put, {"outcome": "pass"})
    assert stand.work(put.task_id) == "completed"
    assert states(stand, put.version_id) == ("passed", "pending")


def test_reviewer_at_an_address_that_is_not_allowed_is_not_asked(
    stand: Stand, reviewer: Reviewer
) -> None:
    bucket = asking_bucket(stand, reviewer)
    with stand.db.engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE webhook_reviewers SET url = 'http://169.254.169.254/latest'")
        )
    put = stand.put(bucket, "a.txt", GOOD)
    assert stand.work(put.task_id) == "completed"
    assert states(stand, put.version_id) == ("rejected", "blocked")
    assert "not allowed" in step_of(stand, put).detail


def test_reviewer_that_a_policy_names_cannot_be_removed(stand: Stand, reviewer: Reviewer) -> None:
    asking_bucket(stand, reviewer)
    with pytest.raises(ConflictError) as caught:
        stand.db.run_session(lambda session: delete_reviewer(session, TENANT, "elsewhere"))
    assert caught.value.code == "reviewer_in_use"


def test_secrets_are_sealed_at_rest(stand: Stand, reviewer: Reviewer) -> None:
    asking_bucket(stand, reviewer)
    with stand.db.engine.connect() as connection:
        sealed = connection.scalar(sa.text("SELECT secrets FROM webhook_reviewers"))
    assert reviewer.secrets[0].removeprefix("whsec_") not in str(sealed)


def test_reviewer_that_does_not_answer_has_a_rest_and_costs_no_attempt(
    stand: Stand, reviewer: Reviewer
) -> None:
    assert stand.review.outside is not None
    outside = replace(stand.review.outside, rests=Rests(failures=2, rest_seconds=1.0))
    stand.review = replace(stand.review, outside=outside)
    bucket = asking_bucket(stand, reviewer)
    reviewer.script = lambda _asked: (503, {})
    puts = [stand.put(bucket, f"{n}.txt", b"text %d" % n) for n in range(4)]
    for put in puts:
        assert stand.work(put.task_id) == "scheduled"
    assert [stand.task(put.task_id)["attempt"] for put in puts] == [1, 1, 0, 0]
    assert len(reviewer.asked) == 2
    # A callback is heard meanwhile, and when the rest is over it is asked again.
    call_back(stand, reviewer, puts[2], {"outcome": "pass"})
    assert stand.work(puts[2].task_id) == "completed"
    reviewer.script = says("pass")
    eventually(lambda: not outside.rests.seconds((TENANT, "elsewhere")))
    assert [stand.work(put.task_id) for put in (puts[3], puts[0], puts[1])] == ["completed"] * 3
