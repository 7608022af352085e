"""When versions are to be deleted: noted at the write, shown to readers, carried out under locks.

A row's `due_at` makes a version findable; whether it may go is decided anew from its own time and
the bucket's present rules, so that an outdated row never deletes anything.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.conditions import UNCONDITIONAL, Conditions
from shared.catalog.context import Catalogue
from shared.catalog.deletes import end_living
from shared.catalog.holds import held
from shared.catalog.lifecycle import Lifecycle, Lifetime, earlier
from shared.catalog.limits import check_key
from shared.catalog.locking import LockedKey, lock_key, share_bucket
from shared.catalog.many_keys import lock_keys
from shared.catalog.models import (
    LIVING,
    Bucket,
    Expiry,
    Location,
    LocationState,
    Version,
    VersionState,
    by_index,
    utc_now,
)
from shared.core.errors import NotFoundError


class Due(NamedTuple):
    """A version whose time seems to be over, as the scan saw it."""

    due_at: dt.datetime
    version_id: int


class Outcome(StrEnum):
    """What became of a version that was due."""

    DELETED = "deleted"
    GONE = "gone"
    """It had ended before."""
    CHANGED = "changed"
    """Its time is another by now."""
    HELD = "held"
    UNREPLICATED = "unreplicated"
    WAITING = "waiting"
    """It is in review or quarantine, or a newer one that is not stored yet is read."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The outcome, and staging files that nobody needs any more once it is committed."""

    outcome: Outcome
    released: tuple[str, ...] = ()


def note_expiry(
    session: Session, bucket: Bucket, key: str, version: Version, own_at: dt.datetime | None
) -> None:
    """Note when a new version expires, if it ever does. The caller holds the key's locks."""
    due_at = due(bucket, key, version, own_at)
    if due_at is not None:
        session.add(Expiry(version_id=version.id, own_at=own_at, due_at=due_at))
        session.flush()


def set_expiry(
    session: Session,
    catalogue: Catalogue,
    bucket_id: int,
    key: str,
    *,
    lifetime: Lifetime,
    conditions: Conditions = UNCONDITIONAL,
) -> dt.datetime | None:
    """Change the own time of what a key serves; returns when it expires now.

    Raises NotFoundError, PreconditionError, InvalidError (`expiry_invalid`) and, for a new time,
    SwitchedOffError.
    """
    check_key(key)
    bucket = share_bucket(session, bucket_id)
    locked = lock_key(session, bucket.id, key, create=False)
    served = None if locked is None else locked.served
    if locked is None or served is None:
        raise NotFoundError("there is no such object", code="object_not_found")
    conditions.judge(served.etag)
    own_at = lifetime.end(locked.now)
    if own_at is not None:
        catalogue.need("delete")
    return change_expiry(session, bucket, key, served, own_at)


def change_expiry(
    session: Session, bucket: Bucket, key: str, version: Version, own_at: dt.datetime | None
) -> dt.datetime | None:
    """Give a version another time of its own, None for none; returns when it expires now."""
    row = lock_expiry(session, version.id)
    due_at = due(bucket, key, version, own_at)
    if due_at is None:
        if row is not None:
            session.delete(row)
    elif row is None:
        session.add(Expiry(version_id=version.id, own_at=own_at, due_at=due_at))
    else:
        row.own_at, row.due_at = own_at, due_at
    session.flush()
    return due_at


def due(
    bucket: Bucket, key: str, version: Version, own_at: dt.datetime | None
) -> dt.datetime | None:
    """Return when a version expires under the bucket's present rules."""
    return earlier(own_at, due_by_rule(bucket, key, version.created_at))


def due_by_rule(bucket: Bucket, key: str, written_at: dt.datetime) -> dt.datetime | None:
    """Return when the bucket's rules delete a key that was written then."""
    if bucket.lifecycle is None:
        return None
    return Lifecycle.model_validate(bucket.lifecycle).due(key, written_at)


def own_times(session: Session, version_ids: Sequence[int]) -> dict[int, dt.datetime]:
    """Return the times that versions have of their own."""
    rows = session.execute(
        sa.select(Expiry.version_id, Expiry.own_at).where(
            Expiry.version_id.in_(version_ids), Expiry.own_at.is_not(None)
        )
    )
    return {version_id: own_at for version_id, own_at in rows if own_at is not None}


def find_due(session: Session, after: Due | None, *, limit: int) -> list[Due]:
    """Return versions that are due, those behind `after`, the longest due first."""
    statement = sa.select(Expiry.due_at, Expiry.version_id).where(Expiry.due_at <= utc_now())
    if after is not None:
        statement = statement.where(
            Expiry.due_at >= after.due_at,
            sa.or_(Expiry.due_at > after.due_at, Expiry.version_id > after.version_id),
        )
    statement = by_index(statement, Expiry, "ix_expiries_due")
    rows = session.execute(statement.order_by(Expiry.due_at, Expiry.version_id).limit(limit))
    return [Due(*row) for row in rows]


def expire(session: Session, catalogue: Catalogue, seen: Due) -> Expired:
    """Delete a version, with the older ones of its key, if it is still due as it was seen.

    What is held, or not yet on every channel that the bucket asks for, stays; so does everything
    that was written later.
    """
    version = session.get(Version, seen.version_id)
    if version is None:
        return _forget(session, seen)
    try:
        bucket = share_bucket(session, version.bucket_id)
    except NotFoundError:
        return _forget(session, seen)
    locked = lock_keys(session, [version.object_id], blocked=True)[version.object_id]
    row = lock_expiry(session, version.id)
    if row is None or row.due_at != seen.due_at:
        return Expired(Outcome.CHANGED)
    if version.id not in locked.versions or version.state not in LIVING:
        # One in quarantine may be released: then it is due.
        is_waiting = _is_quarantined(session, locked, version)
        return Expired(Outcome.WAITING) if is_waiting else _forget(session, seen)
    due_at = change_expiry(session, bucket, locked.row.key, version, row.own_at)
    if due_at is None or due_at > locked.now:
        return Expired(Outcome.CHANGED)
    kept = _keep(session, catalogue, bucket, locked, version)
    if kept is not None:
        return Expired(kept)
    ended = end_living(session, catalogue, locked, newest_generation=version.generation)
    _forget(session, seen)
    if ended is not None and ended.superseded:
        catalogue.tasks.supersede(session, ended.superseded)
    return Expired(Outcome.DELETED, tuple(locked.released))


def _is_quarantined(session: Session, locked: LockedKey, version: Version) -> bool:
    # Guarded by its key's lock, under which it was not read anew.
    session.refresh(version, ["state", "staging_until"])
    until = version.staging_until
    return version.state == VersionState.BLOCKED and until is not None and until > locked.now


def lock_expiry(session: Session, version_id: int) -> Expiry | None:
    """Lock a version's row, after the key's own locks."""
    return session.get(Expiry, version_id, with_for_update=True, populate_existing=True)


def _keep(
    session: Session, catalogue: Catalogue, bucket: Bucket, locked: LockedKey, version: Version
) -> Outcome | None:
    served, stored = locked.served, locked.stored
    if served is not version:
        return Outcome.WAITING
    if stored is None:
        return None
    if held(session, [stored.id]):
        return Outcome.HELD
    wanted = set(bucket.replica_channels or ()) if catalogue.serves("replica") else set()
    if wanted and wanted - _channels(session, stored.blob_id):
        return Outcome.UNREPLICATED
    return None


def _channels(session: Session, blob_id: int) -> set[str]:
    return set(
        session.scalars(
            sa.select(Location.channel).where(
                Location.blob_id == blob_id, Location.state == LocationState.STORED
            )
        )
    )


def _forget(session: Session, seen: Due) -> Expired:
    session.execute(
        sa.delete(Expiry)
        .where(Expiry.version_id == seen.version_id)
        .execution_options(synchronize_session=False)
    )
    return Expired(Outcome.GONE)
