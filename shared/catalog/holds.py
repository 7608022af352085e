"""Holds: a content that must not lose its bytes, and a name that must not be deleted, until later.

A hold names the version that its key served, and refers to that version's blob like a version does.
An overwrite leaves the hold with the old content; a deletion of the name is refused.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.blobs import add_reference, drop_reference
from shared.catalog.context import Catalogue
from shared.catalog.limits import check_key
from shared.catalog.locking import LockedKey, lock_blobs, lock_key, share_bucket
from shared.catalog.models import (
    Hold,
    HolderKind,
    HoldState,
    VersionState,
    by_index,
    utc_clock,
    utc_now,
)
from shared.core.errors import ConflictError, InvalidError, NotFoundError

#: Who ended a hold whose time was over.
BY_TIME = "time"


class NotStoredYet(ConflictError):
    """The content is on its way to its channel; the same request will do later."""

    code = "content_not_stored"
    retry_after_seconds = 2.0


def place_hold(
    session: Session,
    bucket_id: int,
    key: str,
    *,
    reason: str,
    until: dt.datetime | None = None,
    by: str = "",
) -> Hold:
    """Hold the content that a key serves, until a time or until it is released.

    Raises NotFoundError, NotStoredYet while its upload is not done, and InvalidError
    (`until_invalid`) for a time that is over.
    """
    check_key(key)
    bucket = share_bucket(session, bucket_id)
    locked = lock_key(session, bucket.id, key, create=False)
    served = None if locked is None else locked.served
    if locked is None or served is None:
        raise NotFoundError("there is no such object", code="object_not_found")
    if served.state != VersionState.STORED:
        raise NotStoredYet(state=str(served.state), task_id=served.task_id)
    if until is not None and until <= locked.now:
        raise InvalidError("a hold ends in the future", code="until_invalid")
    hold = Hold(
        tenant_id=bucket.tenant_id,
        bucket_id=bucket.id,
        object_id=locked.row.id,
        version_id=served.id,
        blob_id=served.blob_id,
        state=HoldState.ACTIVE,
        reason=reason,
        until=until,
        created_by=by,
        created_at=locked.now,
    )
    session.add(hold)
    session.flush()
    add_reference(session, locked.blob_of(served), HolderKind.HOLD, hold.id)
    return hold


def release_hold(
    session: Session, catalogue: Catalogue, hold_id: int, *, tenant_id: str | None, by: str = ""
) -> Hold:
    """End a hold; one that has ended already is left as it is.

    Raises NotFoundError (`hold_not_found`), for another tenant's hold as well.
    """
    hold = find_hold(session, hold_id, tenant_id=tenant_id)
    _end(session, catalogue, hold, state=HoldState.RELEASED, by=by)
    return hold


def find_hold(session: Session, hold_id: int, *, tenant_id: str | None) -> Hold:
    """Return a hold; `tenant_id` None finds any tenant's. Raises NotFoundError."""
    hold = session.get(Hold, hold_id)
    if hold is None or (tenant_id is not None and hold.tenant_id != tenant_id):
        raise NotFoundError("there is no such hold", code="hold_not_found")
    return hold


def expire_hold(session: Session, catalogue: Catalogue, hold_id: int) -> bool:
    """End a hold whose time is over; False when it is not, or has ended."""
    hold = session.get(Hold, hold_id)
    now = session.scalar(sa.select(utc_clock()))
    if hold is None or hold.until is None or now is None or hold.until > now:
        return False
    return _end(session, catalogue, hold, state=HoldState.EXPIRED, by=BY_TIME)


def overdue_holds(session: Session, *, limit: int) -> Sequence[int]:
    """Return ids of active holds whose time is over, the longest overdue first."""
    statement = sa.select(Hold.id).where(Hold.state == HoldState.ACTIVE, Hold.until <= utc_now())
    statement = by_index(statement, Hold, "ix_holds_until")
    return session.scalars(statement.order_by(Hold.until).limit(limit)).all()


def held(session: Session, version_ids: Iterable[int]) -> set[int]:
    """Return which of these versions a hold keeps now; the caller has locked their objects."""
    ids = sorted(set(version_ids))
    if not ids:
        return set()
    return set(
        session.scalars(
            sa.select(Hold.version_id).where(
                Hold.version_id.in_(ids),
                Hold.state == HoldState.ACTIVE,
                sa.or_(Hold.until.is_(None), Hold.until > utc_clock()),
            )
        )
    )


def refuse_held(session: Session, locked: LockedKey) -> None:
    """Raise ConflictError (`object_held`) when what the locked key has stored is held."""
    stored = locked.stored
    if stored is not None and held(session, [stored.id]):
        raise ConflictError(
            "a hold keeps this object: release it first", code="object_held", version_id=stored.id
        )


def _end(session: Session, catalogue: Catalogue, hold: Hold, *, state: HoldState, by: str) -> bool:
    blob = lock_blobs(session, [hold.blob_id]).get(hold.blob_id)
    session.refresh(hold, with_for_update=True)
    if hold.state != HoldState.ACTIVE:
        return False
    hold.state = state
    hold.ended_at = utc_clock()
    hold.ended_by = by
    session.flush()
    if blob is not None:
        drop_reference(session, catalogue, blob, HolderKind.HOLD, hold.id)
    session.refresh(hold)
    return True
