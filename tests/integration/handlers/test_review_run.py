"""Reviewing a bucket again under another policy: progress, what it blocks, what it leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from services.review.content import open_content
from services.review.sandbox import SandboxLimits
from shared.catalog.buckets import get_bucket
from shared.catalog.holds import place_hold
from shared.catalog.invariants.reviews import review_breaches
from shared.catalog.invariants.work import work_breaches
from shared.catalog.models import Review, ReviewRun, utc_now
from shared.catalog.payloads import CheckReview
from shared.catalog.puts import PutAnswer
from shared.catalog.reads import open_version
from shared.catalog.rereviews import runs
from shared.catalog.rereviews.rechecking import read_recheck
from shared.catalog.reviewing import decide, decide_overdue
from shared.core.clock import Deadline
from shared.core.errors import ConflictError, InvalidError, NotFoundError, TransientError
from shared.outbox import Fail
from shared.outbox.manual import retry
from shared.storage.errors import ChannelUnavailable
from tests.support.handlers import TENANT, Stand

pytestmark = pytest.mark.databases("mariadb")

GOOD = b"a harmless text"
ODD = b"a perhaps odd text"
OLD = {"reject_keywords": ["forbidden"]}
NEW = {"reject_keywords": ["perhaps"]}


def stored(stand: Stand, bucket: int, key: str, content: bytes) -> PutAnswer:
    put = stand.put(bucket, key, content)
    assert stand.work(put.task_id) == "completed"
    stand.work_all("upload")
    assert stand.version(put.version_id).state == "stored"
    return put


def start(stand: Stand) -> ReviewRun:
    return stand.db.run_session(
        lambda session: runs.start_run(session, stand.catalogue, TENANT, "photos", by="ann")
    )


def work(stand: Stand) -> None:
    while stand.waiting("review"):
        stand.work_all("review")


def progress(stand: Stand, run_id: int) -> runs.Progress:
    return stand.look(lambda session: runs.show_run(session, TENANT, run_id))


def again(stand: Stand, version_id: int) -> Review:
    return stand.look(
        lambda session: session.scalars(
            sa.select(Review).where(Review.version_id == version_id, Review.run_id != 0)
        ).one()
    )


def is_readable(stand: Stand, key: str) -> bool:
    def look(session: Any) -> bool:
        try:
            open_version(session, get_bucket(session, TENANT, "photos"), key)
        except NotFoundError:
            return False
        return True

    return stand.look(look)


def check_invariants(stand: Stand) -> None:
    now = stand.look(lambda session: session.scalar(sa.select(utc_now(60))))
    assert now is not None
    found = stand.look(
        lambda session: [*review_breaches(session), *work_breaches(session, now, now)]
    )
    assert found == []


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
    stand.work_all("delete")
    assert len(stand.channels.keys("a")) == len(goods)
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
    stand.work_all("delete")
    assert stand.channels.keys("a") == []


def test_held_content_is_unreadable_but_its_bytes_stay(stand: Stand) -> None:
    bucket = stand.bucket(**OLD)
    stored(stand, bucket, "odd", ODD)
    stand.db.run_session(lambda session: place_hold(session, bucket, "odd", reason="a court"))
    stand.bucket(**NEW)
    start(stand)
    work(stand)
    assert not is_readable(stand, "odd")
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


def test_task_that_ends_by_accident_leaves_the_version_and_may_be_retried(stand: Stand) -> None:
    put = stored(stand, stand.bucket(**OLD), "odd", ODD)
    stand.bucket(**NEW)
    run = start(stand)
    stand.work(run.task_id)
    (task_id,) = stand.waiting("review")
    stand.bench.answers.settle(stand.claim(task_id), Fail("broken"))
    assert again(stand, put.version_id).state == "failed"
    assert is_readable(stand, "odd")
    check_invariants(stand)
    retry(stand.bench.context, task_id, by="ann")
    assert again(stand, put.version_id).state == "open"
    assert stand.work(task_id) == "completed"
    assert stand.version(put.version_id).state == "blocked"
    with pytest.raises(ConflictError):
        retry(stand.bench.context, task_id, by="ann", force=True)


def test_run_that_is_cancelled_goes_on_when_it_is_retried(stand: Stand) -> None:
    put = stored(stand, stand.bucket(**OLD), "odd", ODD)
    stand.bucket(**NEW)
    run = start(stand)
    assert start(stand).id == run.id, "one run at a time"
    stand.bench.answers.settle(stand.claim(run.task_id), Fail("broken"))
    assert progress(stand, run.id).run.state == "failed"
    retry(stand.bench.context, run.task_id or 0, by="ann")
    work(stand)
    assert progress(stand, run.id).run.state == "planned"
    assert stand.version(put.version_id).state == "blocked"


def test_run_for_an_older_policy_is_in_the_way(stand: Stand) -> None:
    stand.bucket(**OLD)
    start(stand)
    stand.bucket(**NEW)
    with pytest.raises(ConflictError) as caught:
        start(stand)
    assert caught.value.code == "re_review_running"


def test_bucket_without_a_policy_cannot_be_reviewed(stand: Stand) -> None:
    stand.bucket()
    with pytest.raises(InvalidError):
        start(stand)


def test_run_makes_no_more_reviews_than_are_wanted_at_a_time(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "PAGE_VERSIONS", 1)
    monkeypatch.setattr("services.review.again.MOST_OPEN", 2)
    bucket = stand.bucket(**OLD)
    for n in range(4):
        stored(stand, bucket, f"good-{n}", b"harmless %d" % n)
    stand.bucket(**NEW)
    run = start(stand)
    assert stand.work(run.task_id) == "scheduled"
    assert progress(stand, run.id).reviews == {"open": 2}
    work(stand)
    assert progress(stand, run.id).reviews == {"passed": 4}


def test_stored_bytes_that_cannot_be_read_are_looked_for_and_end_nothing(stand: Stand) -> None:
    bucket = stand.bucket(**OLD)
    put = stored(stand, bucket, "k", GOOD)
    (place,) = stand.locations(stand.version(put.version_id).blob_id)
    stand.bucket(**NEW)
    start(stand)
    stand.work_all("review")
    (task_id,) = stand.waiting("review")
    stand.channels.faulty["a"].fail_always(ChannelUnavailable("down"), "get")
    assert stand.work(task_id) == "scheduled"
    stand.channels.faulty["a"].heal()
    stand.channels.faulty["a"].inner.delete(place.key, deadline=Deadline(5))
    assert stand.work(task_id) == "failed"
    assert again(stand, put.version_id).state == "failed"
    assert stand.version(put.version_id).state == "stored"


def test_version_that_is_stored_meanwhile_is_read_from_its_channel(stand: Stand) -> None:
    """Its staging file is gone when the review gets to it."""
    bucket = stand.bucket(**OLD)
    put = stand.put(bucket, "odd", ODD)
    stand.work(put.task_id)
    stand.bucket(**NEW)
    run = start(stand)
    assert stand.work(run.task_id) == "completed"
    (task_id,) = stand.waiting("review")
    execution = stand.claim(task_id)
    payload = execution.kind.load(execution.task.payload) if execution.kind else None
    assert isinstance(payload, CheckReview)
    case = stand.look(lambda session: read_recheck(session, payload))
    assert case is not None
    assert stand.work_all("upload") == ["completed"]
    with (
        pytest.raises(TransientError, match="moved"),
        open_content(execution, case, stand.review),
    ):
        raise AssertionError("there is nothing to read")
    assert stand.run(execution) == "completed"
    assert stand.version(put.version_id).state == "blocked"
