"""Blocked bytes: kept for a while, released or destroyed by a person, never readable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.buckets import delete_bucket, get_bucket
from shared.catalog.copies import CopyBegun, CopyOrder, copy_object
from shared.catalog.deletes import end_living
from shared.catalog.locking import lock_key
from shared.catalog.models import Bucket, Verdict, Version, utc_now
from shared.catalog.puts import PutAnswer
from shared.catalog.quarantine import destroy, release
from shared.catalog.reads import open_version
from shared.catalog.removals import start_removal
from shared.core.errors import ConflictError, NotFoundError
from shared.outbox import Fail
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.handlers import TENANT, Stand

pytestmark = pytest.mark.databases("mariadb")

BAD = b"a forbidden text"
POLICY = {"reject_keywords": ["forbidden"]}


def blocked(stand: Stand) -> tuple[int, PutAnswer]:
    bucket = stand.bucket(**POLICY)
    put = stand.put(bucket, "a.txt", BAD)
    assert stand.work(put.task_id) == "completed"
    assert stand.version(put.version_id).state == "blocked"
    return bucket, put


def act(stand: Stand, action: Callable[..., Any], put: PutAnswer, tenant_id: str = TENANT) -> Any:
    review_id = stand.review_of(put.version_id).id
    return stand.db.run_session(
        lambda session: action(
            session, stand.catalogue, review_id, by="ann", reason="a mistake", tenant_id=tenant_id
        )
    )


def refused(stand: Stand, action: Callable[..., Any], put: PutAnswer) -> str:
    with pytest.raises(ConflictError) as caught:
        act(stand, action, put)
    return caught.value.code


def read(stand: Stand) -> Any:
    return stand.look(
        lambda session: open_version(session, get_bucket(session, TENANT, "photos"), "a.txt")
    )


@pytest.mark.databases("sqlite", "mariadb")
def test_released_content_is_stored_and_passes_from_now_on(stand: Stand) -> None:
    bucket, put = blocked(stand)
    with pytest.raises(NotFoundError):
        read(stand)
    review = act(stand, release, put)
    assert (review.state, review.decided_by, review.reason) == ("passed", "ann", "a mistake")
    assert read(stand).version_id == put.version_id
    assert stand.work_all("upload") == ["completed"]
    assert stand.stored_bytes(put.version_id) == BAD
    assert stand.look(lambda s: list(s.scalars(sa.select(Verdict.outcome)))) == ["pass"]
    assert stand.put(bucket, "b.txt", BAD).instant
    assert refused(stand, release, put) == "review_not_rejected"


def test_content_that_a_failure_has_blocked_is_released_as_well(stand: Stand) -> None:
    spec = {"kind": "clamav", "name": "virus"}
    put = stand.put(stand.bucket(reviewers=[spec]), "a.txt", BAD)
    assert stand.work(put.task_id) == "completed"
    act(stand, release, put)
    assert stand.work_all("upload") == ["completed"]
    assert stand.stored_bytes(put.version_id) == BAD


def test_release_after_a_newer_version_passed_is_refused(stand: Stand) -> None:
    bucket, put = blocked(stand)
    newer = stand.put(bucket, "a.txt", b"a harmless text")
    stand.work(newer.task_id)
    assert refused(stand, release, put) == "superseded"
    assert stand.version(put.version_id).state == "blocked"


def test_release_while_a_newer_version_is_reviewed_is_superseded_when_that_passes(
    stand: Stand,
) -> None:
    bucket, put = blocked(stand)
    newer = stand.put(bucket, "a.txt", b"a harmless text")
    act(stand, release, put)
    assert read(stand).version_id == put.version_id
    stand.work(newer.task_id)
    assert read(stand).version_id == newer.version_id
    assert stand.version(put.version_id).state == "superseded"


def test_blocked_content_is_not_released_after_a_delete(stand: Stand) -> None:
    bucket, put = blocked(stand)
    stand.remove(bucket, "a.txt")
    assert refused(stand, release, put) == "superseded"
    # The quarantine keeps the bytes all the same.
    key = stand.version(put.version_id).staging_key
    assert key is not None
    assert stand.is_staged(key)


def test_blocked_content_is_released_although_what_came_before_it_was_deleted_later(
    stand: Stand,
) -> None:
    """By a deletion by prefix that was asked for before it, or as the older version expired."""
    bucket = stand.bucket(**POLICY)
    older = stand.put(bucket, "a.txt", b"a harmless text")
    stand.work(older.task_id)
    stand.work_all("upload")
    made = stand.db.run_session(
        lambda session: start_removal(
            session, stand.catalogue, session.get_one(Bucket, bucket), prefix=""
        )
    )
    put = stand.put(bucket, "a.txt", BAD)
    stand.work(put.task_id)
    assert stand.work(made.task_id) == "completed"
    assert stand.version(older.version_id).state == "deleted"

    def expire(session: Session) -> None:
        locked = lock_key(session, bucket, "a.txt", create=False)
        assert locked is not None
        end_living(session, stand.catalogue, locked, newest_generation=1)

    stand.db.run_session(expire)
    act(stand, release, put)
    assert stand.work_all("upload") == ["completed"]
    assert stand.stored_bytes(put.version_id) == BAD


def test_blocked_content_is_released_after_a_copy_to_its_key_has_failed(stand: Stand) -> None:
    """A copy over channels takes a generation of the key, and leaves no version when it fails."""
    _, put = blocked(stand)
    others = stand.bucket("others", channels=["c"], **POLICY)
    source = stand.put(others, "b.txt", b"a harmless text")
    stand.work(source.task_id)
    stand.work_all("upload")
    order = CopyOrder(
        source_bucket_id=others,
        source_key="b.txt",
        target_bucket_id=stand.version(put.version_id).bucket_id,
        target_key="a.txt",
    )
    copy = stand.db.run_session(lambda session: copy_object(session, stand.catalogue, order))
    assert isinstance(copy, CopyBegun)
    stand.bench.answers.settle(stand.claim(copy.task_id), Fail("broken"))
    act(stand, release, put)
    assert stand.work_all("upload") == ["completed"]
    assert stand.stored_bytes(put.version_id) == BAD


def test_blocked_content_is_not_released_into_a_bucket_that_is_gone(stand: Stand) -> None:
    _, put = blocked(stand)
    stand.db.run_session(lambda session: delete_bucket(session, TENANT, "photos"))
    assert refused(stand, release, put) == "bucket_gone"


def test_quarantine_ends_at_its_time(stand: Stand) -> None:
    _, put = blocked(stand)
    key = stand.version(put.version_id).staging_key
    assert key is not None
    passes(sweeper(stand), 4)
    assert stand.is_staged(key)
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Version).values(staging_until=utc_now(-1)))
    assert refused(stand, release, put) == "bytes_gone"
    passes(sweeper(stand), 4)
    assert not stand.is_staged(key)
    assert stand.version(put.version_id).staging_key is None


def test_quarantine_is_destroyed_early(stand: Stand) -> None:
    _, put = blocked(stand)
    key = stand.version(put.version_id).staging_key
    assert act(stand, destroy, put) == key
    assert stand.version(put.version_id).staging_key is None
    assert "destroyed by ann: a mistake" in stand.review_of(put.version_id).reason
    assert refused(stand, release, put) == "bytes_gone"
    assert refused(stand, destroy, put) == "bytes_gone"
    # The file that nobody names any more goes with the next clean-ups.
    passes(sweeper(stand), 4)
    assert not stand.is_staged(key)


def test_what_passed_has_no_quarantine(stand: Stand) -> None:
    put = stand.put(stand.bucket(**POLICY), "a.txt", b"a harmless text")
    stand.work(put.task_id)
    assert refused(stand, destroy, put) == "review_not_rejected"
    with pytest.raises(NotFoundError):
        act(stand, release, put, tenant_id="other")
