"""Runs of re-reviews that end, go on, or meet bytes that have moved or gone."""

from __future__ import annotations

import pytest

from services.review.content import open_content
from shared.catalog.payloads import CheckReview
from shared.catalog.rereviews import runs
from shared.catalog.rereviews.rechecking import read_recheck
from shared.core.clock import Deadline
from shared.core.errors import ConflictError, InvalidError, TransientError
from shared.outbox import Fail
from shared.outbox.manual import retry
from shared.storage.errors import ChannelUnavailable
from tests.integration.handlers.reviewing_again import (
    GOOD,
    NEW,
    ODD,
    OLD,
    again,
    check_invariants,
    is_readable,
    progress,
    start,
    stored,
    work,
)
from tests.support.handlers import Stand

pytestmark = pytest.mark.databases("mariadb")


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


def test_run_for_newer_rules_takes_the_place_of_an_older_one(stand: Stand) -> None:
    put = stored(stand, stand.bucket(**OLD), "k", GOOD)
    stand.bucket(reject_keywords=["harmless"])
    old = start(stand)
    assert stand.work(old.task_id) == "completed"
    (task_id,) = stand.waiting("review")
    stand.bucket(**NEW)
    new = start(stand)
    assert new.id != old.id
    assert progress(stand, old.id).run.state == "superseded"
    assert stand.work(task_id) == "cancelled"
    work(stand)
    assert progress(stand, old.id).reviews == {"superseded": 1}
    assert progress(stand, new.id).reviews == {"passed": 1}
    assert stand.version(put.version_id).state == "stored"
    with pytest.raises(ConflictError):
        retry(stand.bench.context, task_id, by="ann")
    check_invariants(stand)


def test_run_that_was_cancelled_does_not_go_on_under_other_rules(stand: Stand) -> None:
    stored(stand, stand.bucket(**OLD), "k", GOOD)
    stand.bucket(**NEW)
    run = start(stand)
    stand.bench.answers.settle(stand.claim(run.task_id), Fail("broken"))
    stand.bucket(**OLD)
    with pytest.raises(ConflictError) as caught:
        retry(stand.bench.context, run.task_id or 0, by="ann")
    assert caught.value.code == "re_review_over"


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


def test_run_gives_its_thread_back_and_goes_on_at_its_cursor(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "PAGE_VERSIONS", 2)
    monkeypatch.setattr("services.review.again.TURN_SECONDS", 0.0)
    bucket = stand.bucket(**OLD)
    for n in range(3):
        stored(stand, bucket, f"good-{n}", b"harmless %d" % n)
    stand.bucket(**NEW)
    run = start(stand)
    seen = []
    while stand.work(run.task_id) == "scheduled":
        seen.append(progress(stand, run.id).run.seen)
    assert seen == [2, 3]
    assert progress(stand, run.id).run.state == "planned"


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
