"""Reviewing a bucket again under another policy: progress, what it blocks, what it leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from services.review.sandbox import SandboxLimits
from shared.catalog.holds import place_hold
from shared.catalog.models import Review, utc_now
from shared.catalog.rereviews import runs
from shared.catalog.reviewing import decide, decide_overdue
from tests.integration.handlers.reviewing_again import (
    GOOD,
    NEW,
    ODD,
    OLD,
    again,
    check_invariants,
    end_quarantines,
    is_readable,
    progress,
    start,
    stored,
    work,
)
from tests.support.handlers import TENANT, Stand

pytestmark = pytest.mark.databases("mariadb")


@pytest.mark.databases("sqlite", "mariadb")
def test_stored_version_that_fails_now_is_blocked_and_its_bytes_go(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "PAGE_VERSIONS", 2)
    bucket = stand.bucket(**OLD)
    goods = [stored(stand, bucket, f"good-{n}", b"harmless %d" % n) for n in range(4)]
    odd = stored(stand, bucket, "odd", ODD)
    stand.bucket(**NEW)
    run = start(stand)
    work(stand)

    done = progress(stand, run.id)
    assert (done.run.state, done.run.seen, done.run.planned) == ("planned", 5, 5)
    assert done.reviews == {"passed": 4, "rejected": 1}
    assert not is_readable(stand, "odd")
    assert all(is_readable(stand, f"good-{n}") for n in range(4))
    assert stand.version(odd.version_id).state == "blocked"
    assert stand.object(bucket, "odd").current_version_id is None
    check_invariants(stand)
    # Its bytes are in quarantine, where they are, until the time is over.
    stand.work_all("delete")
    assert len(stand.channels.keys("a")) == len(goods) + 1
    end_quarantines(stand)
    assert len(stand.channels.keys("a")) == len(goods)
    check_invariants(stand)
    # The verdicts count: nothing is left to be reviewed, and the same content stays out.
    assert progress(stand, _finished(stand)).run.planned == 0
    put = stand.put(bucket, "odd", ODD)
    assert stand.work(put.task_id) == "completed"
    assert stand.version(put.version_id).state == "blocked"


def _finished(stand: Stand) -> int:
    run = start(stand)
    work(stand)
    return run.id


def test_content_under_two_names_is_blocked_under_both(stand: Stand) -> None:
    bucket = stand.bucket(**OLD)
    first = stored(stand, bucket, "a", ODD)
    second = stand.put(bucket, "b", ODD)
    assert second.instant
    stand.bucket(**NEW)
    start(stand)
    work(stand)
    states = {stand.version(one.version_id).state for one in (first, second)}
    assert states == {"blocked"}
    assert {again(stand, one.version_id).decided_by for one in (first, second)} == {
        "reviewer",
        "verdict",
    }
    end_quarantines(stand)
    assert stand.channels.keys("a") == []


def test_held_content_is_unreadable_but_its_bytes_stay(stand: Stand) -> None:
    bucket = stand.bucket(**OLD)
    stored(stand, bucket, "odd", ODD)
    stand.db.run_session(lambda session: place_hold(session, bucket, "odd", reason="a court"))
    stand.bucket(**NEW)
    start(stand)
    work(stand)
    assert not is_readable(stand, "odd")
    end_quarantines(stand)
    assert stand.waiting("delete") == []
    assert len(stand.channels.keys("a")) == 1


def test_version_on_its_way_is_blocked_and_its_upload_ends(stand: Stand) -> None:
    bucket = stand.bucket(**OLD)
    put = stand.put(bucket, "odd", ODD)
    stand.work(put.task_id)
    (upload,) = stand.waiting("upload")
    stand.bucket(**NEW)
    start(stand)
    work(stand)
    assert stand.version(put.version_id).state == "blocked"
    assert stand.state(upload) == "cancelled"
    assert not is_readable(stand, "odd")
    # It is in quarantine, as if it had not passed at first.
    assert stand.version(put.version_id).staging_until is not None
    check_invariants(stand)


def test_version_that_is_overwritten_meanwhile_is_left_alone(stand: Stand) -> None:
    bucket = stand.bucket(**OLD)
    old = stored(stand, bucket, "k", ODD)
    stand.bucket(**NEW)
    run = start(stand)
    assert stand.work(run.task_id) == "completed"
    stored_new = stand.put(bucket, "k", GOOD)
    stand.work(stored_new.task_id)
    stand.work_all("upload")
    work(stand)
    assert stand.version(old.version_id).state == "replaced"
    assert again(stand, old.version_id).state == "superseded"
    assert is_readable(stand, "k")
    check_invariants(stand)


@pytest.mark.parametrize(
    ("fail_mode", "state"), [("closed", "failed"), ("open", "passed"), ("human", "doubtful")]
)
def test_reviewers_that_fail_delete_nothing(stand: Stand, fail_mode: str, state: str) -> None:
    bucket = stand.bucket(**OLD)
    put = stored(stand, bucket, "k", GOOD)
    stand.bucket(**NEW, fail_mode=fail_mode)
    stand.review = replace(stand.review, limits=SandboxLimits(seconds=0.0))
    run = start(stand)
    work(stand)
    assert again(stand, put.version_id).state == state
    assert is_readable(stand, "k")
    check_invariants(stand)
    # It says nothing of the content: the next run looks again.
    stand.review = replace(stand.review, limits=SandboxLimits())
    second = start(stand)
    assert second.id != run.id
    work(stand)
    assert progress(stand, second.id).reviews == {"passed": 1}


@pytest.mark.parametrize(("approve", "state"), [(True, "stored"), (False, "blocked")])
def test_a_person_decides_what_is_doubtful_now(stand: Stand, approve: bool, state: str) -> None:
    put = stored(stand, stand.bucket(**OLD), "odd", ODD)
    stand.bucket(doubtful_keywords=["perhaps"])
    start(stand)
    work(stand)
    review = again(stand, put.version_id)
    assert review.state == "doubtful"
    assert is_readable(stand, "odd")
    stand.db.run_session(
        lambda session: decide(
            session, stand.catalogue, review.id, approve=approve, by="ann", tenant_id=TENANT
        )
    )
    assert stand.version(put.version_id).state == state
    check_invariants(stand)


def test_nobody_decides_in_time(stand: Stand) -> None:
    bucket = stand.bucket(**OLD)
    put, other = stored(stand, bucket, "a", ODD), stored(stand, bucket, "b", ODD + b"!")
    stand.bucket(doubtful_keywords=["perhaps"])
    start(stand)
    work(stand)
    stand.remove(bucket, "b")
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Review).values(deadline_at=utc_now(-1)))
    for one in (put, other):
        review_id = again(stand, one.version_id).id
        assert stand.db.run_session(
            lambda session, review_id=review_id: decide_overdue(session, stand.catalogue, review_id)
        )
    assert stand.version(put.version_id).state == "blocked"
    assert again(stand, other.version_id).state == "superseded"
