"""SIGKILL at every numbered step of a review that asks elsewhere, and of one that looks again.

Then another worker goes on, and the invariants hold as if nobody had died.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from shared.catalog.invariants.rows import row_breaches
from shared.catalog.models import Review, utc_clock
from shared.catalog.puts import PutAnswer
from shared.catalog.rereviews.runs import show_run
from shared.catalog.rereviews.starting import start_run
from shared.core.failpoints import arm
from tests.integration.handlers.asking import GOOD, asking_bucket, call_back, step_of
from tests.integration.handlers.reviewing_again import end_quarantines
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.crash import crash
from tests.support.handlers import TENANT, Stand
from tests.support.reviewer import Reviewer, says

pytestmark = pytest.mark.databases("mariadb")

KILLED = -9
ASKING_STEPS = [
    "review.claimed",
    "review.after_step",
    "review.after_waiting",
    "fenced.before_commit",
    "review.after_ask",
    "review.before_snooze",
    "answer.before",
    "answer.after",
]
ANSWERED_STEPS = [
    "review.claimed",
    "review.after_steps",
    "review.before_commit",
    "complete.before_commit",
    "complete.after_commit",
    "review.after_commit",
]
AGAIN_STEPS = [
    "review.claimed",
    "review.after_steps",
    "complete.before_commit",
    "complete.after_commit",
]
RUN_STEPS = ["fenced.before_commit", "review.after_page", "complete.before_commit"]


def die(stand: Stand, root: Path, task_id: int | None, failpoint: str) -> None:
    """Let a process die in the task, and bring the task back as the lease scan does."""
    assert task_id is not None
    url = stand.db.engine.url.render_as_string(hide_password=False)
    assert crash(url, root, task_id, failpoint) == KILLED
    passes(sweeper(stand), 2)
    if stand.state(task_id) == "running":
        stand.bench.set(task_id, state="pending", owner=None, lease_until=None)


def finish(stand: Stand, task_id: int | None) -> None:
    """End the task, if it has not ended."""
    if stand.state(task_id) != "completed":
        assert stand.work(task_id) == "completed"


def check(stand: Stand) -> None:
    """End what follows, then hold all rows against each other."""
    stand.work_all("upload")
    stand.work_all("delete")
    passes(sweeper(stand), 3)
    now = stand.look(lambda session: session.scalar(sa.select(utc_clock())))
    assert now is not None
    assert (
        stand.look(lambda s: list(row_breaches(s, now=now, late_seconds=0.0, sweep_seconds=0.0)))
        == []
    )


@pytest.mark.parametrize("step", ASKING_STEPS)
def test_death_while_somebody_is_asked(
    stand: Stand, reviewer: Reviewer, tmp_path: Path, step: str
) -> None:
    put = stand.put(asking_bucket(stand, reviewer), "a.txt", GOOD)
    die(stand, tmp_path, put.task_id, step)
    if stand.state(put.task_id) == "pending":
        assert stand.work(put.task_id) == "scheduled"
    # However often it was asked, it was one question.
    assert len({one.message_id for one in reviewer.asked}) == 1
    call_back(stand, reviewer, put, {"outcome": "pass"})
    assert stand.work(put.task_id) == "completed"
    check(stand)
    assert stand.stored_bytes(put.version_id) == GOOD


@pytest.mark.parametrize("step", ANSWERED_STEPS)
def test_death_after_the_callback(
    stand: Stand, reviewer: Reviewer, tmp_path: Path, step: str
) -> None:
    put = stand.put(asking_bucket(stand, reviewer), "a.txt", GOOD)
    assert stand.work(put.task_id) == "scheduled"
    call_back(stand, reviewer, put, {"outcome": "pass"})
    die(stand, tmp_path, put.task_id, step)
    finish(stand, put.task_id)
    check(stand)
    assert len(reviewer.asked) == 1
    assert stand.stored_bytes(put.version_id) == GOOD


def test_death_with_an_answer_in_the_response(
    stand: Stand, reviewer: Reviewer, tmp_path: Path
) -> None:
    """It was heard but not kept: the same question is asked again."""
    reviewer.script = says("reject")
    put = stand.put(asking_bucket(stand, reviewer), "a.txt", GOOD)
    die(stand, tmp_path, put.task_id, "review.after_ask")
    assert step_of(stand, put).outcome == "waiting"
    finish(stand, put.task_id)
    assert len({one.message_id for one in reviewer.asked}) == 1
    assert stand.version(put.version_id).state == "blocked"
    check(stand)


def test_callback_whose_commit_fails_changes_nothing(stand: Stand, reviewer: Reviewer) -> None:
    put = stand.put(asking_bucket(stand, reviewer), "a.txt", GOOD)
    stand.work(put.task_id)
    arm("review.callback_written=raise")
    try:
        with pytest.raises(RuntimeError):
            call_back(stand, reviewer, put, {"outcome": "pass"})
    finally:
        arm("")
    assert (step_of(stand, put).outcome, stand.state(put.task_id)) == ("waiting", "scheduled")
    call_back(stand, reviewer, put, {"outcome": "pass"})
    finish(stand, put.task_id)
    check(stand)


def stored(stand: Stand) -> PutAnswer:
    put = stand.put(stand.bucket(reject_keywords=["forbidden"]), "odd", b"a perhaps odd text")
    assert stand.work(put.task_id) == "completed"
    assert stand.work_all("upload") == ["completed"]
    stand.bucket(reject_keywords=["perhaps"])
    return put


def start(stand: Stand) -> int:
    run = stand.db.run_session(
        lambda session: start_run(session, stand.catalogue, TENANT, "photos", by="ann")
    )
    assert run.task_id is not None
    return run.task_id


@pytest.mark.parametrize("step", RUN_STEPS)
def test_death_while_reviews_are_made(stand: Stand, tmp_path: Path, step: str) -> None:
    put = stored(stand)
    task_id = start(stand)
    die(stand, tmp_path, task_id, step)
    finish(stand, task_id)
    progress = stand.look(lambda session: show_run(session, TENANT, 1))
    assert (progress.run.state, progress.run.planned, progress.reviews) == (
        "planned",
        1,
        {"open": 1},
    )
    assert stand.work_all("review") == ["completed"]
    assert stand.version(put.version_id).state == "blocked"
    check(stand)


@pytest.mark.parametrize("step", AGAIN_STEPS)
def test_death_while_it_is_reviewed_again(stand: Stand, tmp_path: Path, step: str) -> None:
    put = stored(stand)
    assert stand.work(start(stand)) == "completed"
    (task_id,) = stand.waiting("review")
    die(stand, tmp_path, task_id, step)
    finish(stand, task_id)
    review = stand.look(
        lambda session: session.scalars(sa.select(Review).where(Review.run_id != 0)).one()
    )
    assert review.state == "rejected"
    assert stand.version(put.version_id).state == "blocked"
    check(stand)
    assert len(stand.channels.keys("a")) == 1, "in quarantine"
    end_quarantines(stand)
    assert stand.channels.keys("a") == []
    check(stand)
