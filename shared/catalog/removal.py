"""The delete worker's side of a blob's end: ownership, its locations one by one, the tombstone.

A blob is deleted only by the task that owns it, after a recount under its lock; from `deleting` on
nothing can attach to it any more.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.blobs import has_references
from shared.catalog.locking import lock_blobs
from shared.catalog.models import (
    Blob,
    BlobState,
    Location,
    LocationState,
    Replica,
    utc_clock,
)


@dataclass(frozen=True, slots=True)
class Go:
    """The task owns the blob: delete its locations."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Condemned, but the grace is not over."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to do for this task; `reason` says why, in one word."""

    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a blob's locations; `due_in_seconds` until the first parked one is due."""

    count: int
    due_in_seconds: float


def take(session: Session, *, blob_id: int, generation: int, task_id: int) -> Go | Wait | Nothing:
    """Decide under the blob's lock whether this task deletes it, and make it the owner if so.

    To be committed only while the task is still the caller's.
    """
    blob = lock_blobs(session, [blob_id]).get(blob_id)
    if blob is None or blob.state == BlobState.DELETED:
        return Nothing("deleted")
    if blob.state == BlobState.DELETING:
        return Go() if blob.delete_owner == task_id else Nothing("owned")
    if blob.state != BlobState.CONDEMNED:
        return Nothing(str(blob.state))
    if blob.generation != generation:
        return Nothing("generation")
    grace_seconds = _seconds_until(session, blob.delete_after)
    if grace_seconds > 0:
        return Wait(grace_seconds)
    if has_references(session, blob_id):
        # It should have been revived by whoever attached: a reference outranks a state.
        blob.state, blob.delete_after = BlobState.LIVE, None
        session.flush()
        return Nothing("referenced")
    blob.state, blob.delete_owner = BlobState.DELETING, task_id
    blob.generation += 1
    session.flush()
    return Go()


def left(session: Session, blob_id: int) -> Left:
    """Count the locations that are not tombstones yet."""
    count, first = session.execute(
        sa.select(sa.func.count(), sa.func.min(Location.next_try_at)).where(
            Location.blob_id == blob_id, Location.state != LocationState.TOMBSTONE
        )
    ).one()
    return Left(int(count), _seconds_until(session, first))


def finish(session: Session, blob: Blob | None, *, task_id: int) -> bool:
    """Close a locked blob whose bytes are all gone; False when a location is left.

    One may have been added since the last look, by an upload that was under way.
    """
    if blob is None or blob.state != BlobState.DELETING or blob.delete_owner != task_id:
        return True
    if left(session, blob.id).count:
        return False
    blob.state, blob.deleted_at = BlobState.DELETED, utc_clock()
    # Rows that ask for copies of it ask for nothing any more.
    session.execute(
        sa.delete(Replica)
        .where(Replica.blob_id == blob.id)
        .execution_options(synchronize_session=False)
    )
    session.flush()
    return True


def _seconds_until(session: Session, moment: dt.datetime | None) -> float:
    now = session.scalar(sa.select(utc_clock()))
    return 0.0 if moment is None or now is None else (moment - now).total_seconds()
