"""A reviewer elsewhere: asked and heard at once, by callback, by asking again, or not in time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from services.review.resting import Rests
from shared.catalog.webhook_reviewers import delete_reviewer
from shared.core.errors import ConflictError
from shared.outbox.manual import retry
from tests.integration.handlers.asking import (
    GOOD,
    asking_bucket,
    call_back,
    end_wait,
    states,
    step_of,
)
from tests.support.handlers import TENANT, Stand
from tests.support.reviewer import Reviewer, later, says

pytestmark = pytest.mark.databases("mariadb")


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
    now = [0.0]
    rests = Rests(failures=2, rest_seconds=30.0, clock=lambda: now[0])
    outside = replace(stand.review.outside, rests=rests)
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
    now[0] = 31.0
    assert [stand.work(put.task_id) for put in (puts[3], puts[0], puts[1])] == ["completed"] * 3
