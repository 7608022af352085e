"""The life of an upload session: begun, looked at, given up.

Every function may be repeated in a fresh transaction: until its commit it has left nothing behind.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.limits import is_name
from shared.catalog.models import (
    Bucket,
    SessionState,
    UploadSession,
    utc_clock,
    utc_now,
)
from shared.catalog.uploading.rules import (
    SessionSpec,
    UploadLimits,
    choose_part_bytes,
    conditions_json,
    lifetime_json,
)
from shared.core.clock import utc_now as local_now
from shared.core.errors import BacklogError, ConflictError, NotFoundError
from shared.core.ids import timed_id

#: Seconds for which the result of an operation is kept, after its end.
RESULT_SECONDS = 30 * 86_400.0
#: Seconds that a client should wait when it has too many sessions open.
_RETRY_AFTER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class LockedSession:
    """A session and the database's clock, after its lock was given."""

    row: UploadSession
    now: dt.datetime


@dataclass(frozen=True, slots=True)
class Begun:
    """The session of an operation, and whether this request has made it."""

    row: UploadSession
    is_new: bool


def begin_session(
    session: Session,
    bucket: Bucket,
    spec: SessionSpec,
    limits: UploadLimits,
    *,
    admit: Callable[[], None] = lambda: None,
) -> Begun:
    """Begin an operation, or return the session that it has already, its expiry renewed.

    `admit` is asked, and may refuse, before a new one is made. Raises ConflictError
    (`operation_mismatch`) when the id was used for something else, InvalidError, BacklogError.
    """
    fingerprint = spec.fingerprint(bucket.name)
    known = _again(session, bucket.tenant_id, spec, fingerprint, limits)
    if known is not None:
        return Begun(known, is_new=False)
    # Asked again when the version is made; what is over by now never was meant.
    spec.lifetime.end(local_now())
    admit()
    _check_open(session, bucket.tenant_id, limits)
    row = UploadSession(
        public_id=timed_id(),
        tenant_id=bucket.tenant_id,
        operation_id=spec.operation_id,
        fingerprint=fingerprint,
        bucket_id=bucket.id,
        key=spec.key,
        size_bytes=spec.size,
        sha256=spec.sha256,
        content_type=spec.content_type,
        user_metadata=dict(spec.metadata),
        conditions=conditions_json(spec.conditions),
        lifetime=lifetime_json(spec.lifetime),
        part_bytes=choose_part_bytes(spec.size, spec.part_bytes, limits),
        state=SessionState.OPEN,
        created_at=utc_clock(),
        expires_at=utc_now(limits.expiry_seconds),
    )
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        # Another request has begun it in this very moment.
        known = _again(session, bucket.tenant_id, spec, fingerprint, limits)
        if known is None:
            raise
        return Begun(known, is_new=False)
    session.refresh(row)
    return Begun(row, is_new=True)


def find_session(session: Session, tenant_id: str, public_id: str) -> LockedSession:
    """Return a tenant's session without locking it. Raises NotFoundError (`upload_not_found`)."""
    return _find(session, tenant_id, public_id, lock=False)


def lock_session(session: Session, tenant_id: str, public_id: str) -> LockedSession:
    """Lock a tenant's session. Raises NotFoundError (`upload_not_found`)."""
    return _find(session, tenant_id, public_id, lock=True)


def lock_session_by_id(session: Session, session_id: int) -> LockedSession | None:
    """Lock a session by its row's id, None when it is gone."""
    found = session.execute(
        sa.select(UploadSession, utc_clock())
        .where(UploadSession.id == session_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()
    return None if found is None else LockedSession(*found)


def check_takes_parts(found: LockedSession) -> None:
    """Raise ConflictError unless the session is open: parts for it would leak."""
    row = found.row
    if row.state != SessionState.OPEN:
        raise ConflictError(f"the upload is {row.state}", code=f"upload_{row.state}")
    if row.expires_at is not None and row.expires_at <= found.now:
        raise ConflictError(
            "the upload has expired; begin it again under its operation id", code="upload_expired"
        )


def abort_session(
    session: Session, catalogue: Catalogue, tenant_id: str, public_id: str
) -> UploadSession:
    """Give a session up: it takes no parts any more, and its task makes no version.

    Its parts and at last its row go by `removal.remove_session`, outside of this transaction.
    Raises ConflictError (`upload_done`) when it has its result, and NotFoundError.
    """
    row = lock_session(session, tenant_id, public_id).row
    if row.state == SessionState.DONE:
        raise ConflictError("the upload is done: its result stays", code="upload_done")
    mark_aborted(session, catalogue, row)
    return row


def mark_aborted(session: Session, catalogue: Catalogue, row: UploadSession) -> None:
    """Set a locked session that has no result to aborted, and end its task."""
    was_completing = row.state == SessionState.COMPLETING
    row.state = SessionState.ABORTED
    row.ended_at = utc_clock()
    row.expires_at = utc_clock()
    session.flush()
    if was_completing and row.task_id is not None:
        catalogue.tasks.supersede(session, [row.task_id])


def _find(session: Session, tenant_id: str, public_id: str, *, lock: bool) -> LockedSession:
    found = None
    if is_name(public_id):
        statement = sa.select(UploadSession, utc_clock()).where(
            UploadSession.public_id == public_id, UploadSession.tenant_id == tenant_id
        )
        if lock:
            statement = statement.with_for_update()
        found = session.execute(statement.execution_options(populate_existing=True)).one_or_none()
    if found is None:
        raise NotFoundError("there is no such upload", code="upload_not_found")
    return LockedSession(*found)


def _again(
    session: Session, tenant_id: str, spec: SessionSpec, fingerprint: str, limits: UploadLimits
) -> UploadSession | None:
    row = session.scalars(
        sa.select(UploadSession)
        .where(
            UploadSession.tenant_id == tenant_id, UploadSession.operation_id == spec.operation_id
        )
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()
    if row is None:
        return None
    if row.fingerprint != fingerprint:
        raise ConflictError(
            "the operation id was used for another upload", code="operation_mismatch"
        )
    if row.state == SessionState.ABORTED:
        raise ConflictError("the upload is being given up", code="upload_aborted")
    if row.state == SessionState.OPEN:
        row.expires_at = utc_now(limits.expiry_seconds)
        session.flush()
        session.refresh(row)
    return row


def _check_open(session: Session, tenant_id: str, limits: UploadLimits) -> None:
    some = (
        sa.select(sa.literal(1))
        .select_from(UploadSession)
        .where(UploadSession.tenant_id == tenant_id, UploadSession.state == SessionState.OPEN)
        .limit(limits.max_open)
        .subquery()
    )
    count = session.execute(sa.select(sa.func.count()).select_from(some)).scalar_one()
    if count >= limits.max_open:
        raise BacklogError(
            f"{limits.max_open} uploads of this tenant are open already",
            code="uploads_open",
            retry_after_seconds=_RETRY_AFTER_SECONDS,
            limit=limits.max_open,
        )
