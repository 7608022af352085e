"""Rules that change: what is there is reviewed again by itself, and nothing is overlooked."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from shared.catalog import review_policy
from shared.catalog.buckets import delete_bucket
from shared.catalog.models import Blob, Review, ReviewRun
from shared.catalog.quarantine import destroy, release
from shared.catalog.reviewing import decide
from shared.core.errors import ConflictError, SwitchedOffError
from tests.integration.handlers.reviewing_again import (
    GOOD,
    NEW,
    ODD,
    OLD,
    again,
    change,
    check_invariants,
    end_quarantines,
    is_readable,
    progress,
    stored,
    work,
)
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.handlers import TENANT, Stand

pytestmark = pytest.mark.databases("mariadb")


@pytest.mark.databases("sqlite", "mariadb")
def test_change_begins_a_run_behind_what_clients_wait_for(stand: Stand) -> None:
    bucket = stand.bucket(**OLD)
    stored(stand, bucket, "good", GOOD)
    odd = stored(stand, bucket, "odd", ODD)
    (run,) = change(stand, **NEW)
    assert (run.state, run.started_by) == ("running", "policy change")
    assert stand.task(run.task_id).priority == 3
    assert len(change(stand, **NEW, human_seconds=60)) == 1, "the same rules"
    assert stand.work(run.task_id) == "completed"
    assert {stand.task(task_id).priority for task_id in stand.waiting("review")} == {3}
    check_invariants(stand)
    work(stand)
    assert progress(stand, run.id).reviews == {"passed": 1, "rejected": 1}
    assert stand.version(odd.version_id).state == "blocked"
    assert is_readable(stand, "good")
    assert not is_readable(stand, "odd")
    check_invariants(stand)


def test_change_begins_nothing_where_there_is_nothing_to_review_or_it_is_to_be_left(
    stand: Stand,
) -> None:
    bucket = stand.bucket(**OLD)
    assert change(stand, **NEW) == []
    stored(stand, bucket, "good", GOOD)
    assert change(stand, **OLD, on_change="leave") == []
    assert change(stand) == [], "no rules any more"
    assert len(change(stand, **OLD)) == 1, "the first rules of what is there"


def test_newer_rules_leave_nothing_to_the_older_ones(stand: Stand) -> None:
    bucket = stand.bucket(**OLD)
    odd, good = stored(stand, bucket, "odd", ODD), stored(stand, bucket, "good", GOOD)
    (old,) = change(stand, doubtful_keywords=["perhaps"], reject_keywords=["harmless"])
    assert stand.work(old.task_id) == "completed"
    for_odd, for_good = stand.waiting("review")
    assert stand.work(for_odd) == "completed"
    review = again(stand, odd.version_id)
    assert review.state == "doubtful"
    new, _ = change(stand, **OLD)
    # Neither a person nor the task that waits judges by rules that are over.
    with pytest.raises(ConflictError):
        stand.db.run_session(
            lambda session: decide(
                session, stand.catalogue, review.id, approve=False, by="ann", tenant_id=TENANT
            )
        )
    assert stand.work(for_good) == "cancelled"
    work(stand)
    assert {stand.version(one.version_id).state for one in (odd, good)} == {"stored"}
    assert progress(stand, new.id).run.planned == 0, "both have passed under these"
    passes(sweeper(stand))
    done = progress(stand, old.id)
    assert (done.run.state, done.reviews) == ("superseded", {"superseded": 2})
    check_invariants(stand)


def test_run_under_way_ends_with_its_task_when_the_rules_change(stand: Stand) -> None:
    stored(stand, stand.bucket(**OLD), "odd", ODD)
    (old,) = change(stand, **NEW)
    assert change(stand)[0].state == "superseded"
    assert stand.state(old.task_id) == "cancelled"
    assert stand.waiting("review") == []
    assert is_readable(stand, "odd")


def test_content_that_passes_late_is_reviewed_again(stand: Stand) -> None:
    """Its first review had begun under the rules of its PUT."""
    bucket = stand.bucket(**OLD)
    late = stand.put(bucket, "odd", ODD)
    (run,) = change(stand, **NEW)
    assert stand.work(run.task_id) == "completed"
    assert progress(stand, run.id).run.planned == 0
    assert stand.work(late.task_id) == "completed"
    assert is_readable(stand, "odd")
    assert progress(stand, run.id).reviews == {"open": 1}
    check_invariants(stand)
    work(stand)
    assert not is_readable(stand, "odd")
    assert stand.version(late.version_id).state == "blocked"
    check_invariants(stand)


def test_content_that_passes_before_its_page_is_planned_once(stand: Stand) -> None:
    bucket = stand.bucket(**OLD)
    late = stand.put(bucket, "good", GOOD)
    (run,) = change(stand, **NEW)
    assert stand.work(late.task_id) == "completed"
    work(stand)
    done = progress(stand, run.id)
    assert (done.run.seen, done.run.planned, done.reviews) == (1, 1, {"passed": 1})


def test_run_waits_for_somebody_who_serves_reviews(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(stand, stand.bucket(**OLD), "odd", ODD)
    served = stand.catalogue
    stand.catalogue = replace(served, switched_off=frozenset({"review"}))
    with pytest.raises(SwitchedOffError):
        change(stand, **NEW)
    # Another release judges differently: nobody has changed a rule through this one.
    stand.bucket(**NEW)
    monkeypatch.setattr(review_policy, "REVIEWERS_VERSION", 999)
    passes(sweeper(stand), 2)
    (run,) = stand.look(lambda session: list(session.scalars(sa.select(ReviewRun))))
    assert (run.state, run.task_id) == ("running", None)
    passes(sweeper(stand))
    assert stand.waiting("review") == []
    stand.catalogue = served
    passes(sweeper(stand), 2)
    work(stand)
    assert progress(stand, run.id).reviews == {"rejected": 1}


def test_policies_that_are_right_are_not_read_again(stand: Stand) -> None:
    stand.bucket(**OLD)
    sweeps, seen = sweeper(stand), []
    passes(sweeps)
    sa.event.listen(
        stand.db.engine, "before_cursor_execute", lambda *args: seen.append(str(args[2]))
    )
    passes(sweeps)
    assert any("buckets.review_policy_version" in text for text in seen)
    assert not any("buckets.review_policy," in text for text in seen)
    stand.bucket(**NEW)
    del seen[:]
    passes(sweeps)
    assert any("buckets.review_policy," in text for text in seen)


def test_run_that_nobody_began_ends_with_its_bucket(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = stand.bucket(**OLD)
    stored(stand, bucket, "odd", ODD)
    stand.catalogue = replace(stand.catalogue, switched_off=frozenset({"review"}))
    monkeypatch.setattr(review_policy, "REVIEWERS_VERSION", 999)
    passes(sweeper(stand))
    stand.remove(bucket, "odd")
    stand.db.run_session(lambda session: delete_bucket(session, TENANT, "photos"))
    passes(sweeper(stand))
    (run,) = stand.look(lambda session: list(session.scalars(sa.select(ReviewRun))))
    assert (run.state, run.error_code) == ("cancelled", "bucket_gone")


def test_release_that_judges_differently_reviews_all_again(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(stand, stand.bucket(**OLD), "good", GOOD)
    passes(sweeper(stand))
    assert stand.waiting("review") == []
    monkeypatch.setattr(review_policy, "REVIEWERS_VERSION", 999)
    passes(sweeper(stand), 2)
    work(stand)
    runs = stand.look(lambda session: list(session.scalars(sa.select(ReviewRun))))
    assert [(run.state, run.planned) for run in runs] == [("planned", 1)]
    check_invariants(stand)


def _blocked_again(stand: Stand) -> tuple[int, int]:
    """Return a version that was stored and is blocked now, and its review."""
    put = stored(stand, stand.bucket(**OLD), "odd", ODD)
    change(stand, **NEW)
    work(stand)
    assert stand.version(put.version_id).state == "blocked"
    return put.version_id, again(stand, put.version_id).id


def _act(stand: Stand, action: object, review_id: int) -> object:
    assert callable(action)
    return stand.db.run_session(
        lambda session: action(
            session, stand.catalogue, review_id, by="ann", reason="a mistake", tenant_id=TENANT
        )
    )


@pytest.mark.databases("sqlite", "mariadb")
def test_what_was_stored_is_released_from_quarantine(stand: Stand) -> None:
    version_id, review_id = _blocked_again(stand)
    stand.work_all("delete")
    _act(stand, release, review_id)
    assert stand.stored_bytes(version_id) == ODD
    assert is_readable(stand, "odd")
    review = stand.look(lambda session: session.get_one(Review, review_id))
    assert (review.state, review.decided_by) == ("passed", "ann")
    check_invariants(stand)
    end_quarantines(stand)
    assert stand.stored_bytes(version_id) == ODD
    with pytest.raises(ConflictError):
        _act(stand, release, review_id)


def test_what_was_stored_goes_when_its_quarantine_is_destroyed(stand: Stand) -> None:
    version_id, review_id = _blocked_again(stand)
    assert _act(stand, destroy, review_id) is None
    with pytest.raises(ConflictError) as caught:
        _act(stand, release, review_id)
    assert caught.value.code == "bytes_gone"
    stand.work_all("delete")
    assert stand.channels.keys("a") == []
    blob_id = stand.version(version_id).blob_id
    assert stand.look(lambda session: session.get_one(Blob, blob_id)).state == "deleted"


def test_what_is_released_under_rules_that_are_over_is_reviewed_again(stand: Stand) -> None:
    version_id, review_id = _blocked_again(stand)
    newest = change(stand, reject_keywords=["odd"])[0]
    work(stand)
    _act(stand, release, review_id)
    assert is_readable(stand, "odd")
    work(stand)
    assert progress(stand, newest.id).reviews == {"rejected": 1}
    assert stand.version(version_id).state == "blocked"
    check_invariants(stand)
