"""Sessions on their way out: the files of their parts first, then the rows, the session's last.

A death anywhere leaves the session aborted; whoever comes next, request or sweep, goes on with the
parts that are left.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.models import (
    Bucket,
    SessionState,
    UploadPart,
    UploadSession,
    by_index,
    utc_now,
)
from shared.catalog.uploading.parts import drop_parts, parts_of
from shared.catalog.uploading.sessions import RESULT_SECONDS, lock_session_by_id, mark_aborted
from shared.core.clock import Deadline
from shared.core.failpoints import failpoint
from shared.outbox.db import Database
from shared.storage.staging import Staging

#: Rows that one statement reads.
_PAGE_ROWS = 500
#: Parts that go together. A call to an object store takes a while, and an upload has thousands.
_PAGE_PARTS = 100


def remove_session(db: Database, staging: Staging, session_id: int, *, deadline: Deadline) -> bool:
    """Remove an aborted session with all it has; False when it is not aborted (any more).

    Blocks; opens its own transactions. Raises what staging raises; then it is to be repeated.
    """
    while True:
        page = db.run_session(lambda session: _aborted_parts(session, session_id), read_only=True)
        if page is None:
            return False
        for part in page:
            staging.remove(part.staging_key, deadline=deadline)
        failpoint("uploads.abort_released")
        numbers = [part.number for part in page]
        if not numbers:
            return db.run_session(lambda session: _delete_aborted(session, session_id))
        db.run_session(lambda session, gone=numbers: _drop_aborted(session, session_id, gone))  # type: ignore[misc]


def expired_sessions(
    session: Session, state: SessionState, *, but: Collection[int] = ()
) -> Sequence[int]:
    """Return a page of sessions of a state whose time is over, the oldest first, but for some."""
    statement = (
        sa.select(UploadSession.id)
        .where(
            UploadSession.state == state,
            UploadSession.expires_at <= utc_now(),
            UploadSession.id.not_in(but),
        )
        .order_by(UploadSession.expires_at, UploadSession.id)
        .limit(_PAGE_ROWS)
    )
    return session.scalars(by_index(statement, UploadSession, "ix_upload_sessions_expiry")).all()


def homeless_sessions(session: Session) -> Sequence[int]:
    """Return a page of open sessions whose bucket is gone: they can become nothing."""
    statement = (
        sa.select(UploadSession.id)
        .outerjoin(Bucket, Bucket.id == UploadSession.bucket_id)
        .where(UploadSession.state == SessionState.OPEN, Bucket.id.is_(None))
        .limit(_PAGE_ROWS)
    )
    return session.scalars(by_index(statement, UploadSession, "ix_upload_sessions_expiry")).all()


def give_up_open(session: Session, catalogue: Catalogue, session_id: int) -> bool:
    """Set an open session to aborted if its time is over or its bucket gone.

    Asked again under its lock.
    """
    found = lock_session_by_id(session, session_id)
    if found is None or found.row.state != SessionState.OPEN:
        return False
    if not _is_over(found.row, found.now) and session.get(Bucket, found.row.bucket_id) is not None:
        return False
    mark_aborted(session, catalogue, found.row)
    return True


def forget_results(session: Session) -> int:
    """Delete a page of done sessions whose results were kept for long enough; returns how many."""
    gone = expired_sessions(session, SessionState.DONE)
    for session_id in sorted(gone):
        session.execute(
            sa.delete(UploadSession)
            .where(
                UploadSession.id == session_id,
                UploadSession.state == SessionState.DONE,
                UploadSession.expires_at <= utc_now(),
            )
            .execution_options(synchronize_session=False)
        )
    return len(gone)


def forget_failed(session: Session, session_id: int) -> tuple[str, ...]:
    """Let go of a failed session's parts, and later of its reason, kept for long enough.

    Returns the staging files that nobody names after the commit.
    """
    found = lock_session_by_id(session, session_id)
    if (
        found is None
        or found.row.state != SessionState.FAILED
        or not _is_over(found.row, found.now)
    ):
        return ()
    parts = parts_of(session, session_id)
    if not parts:
        session.delete(found.row)
        session.flush()
        return ()
    found.row.part_count = found.row.received_bytes = 0
    found.row.expires_at = utc_now(RESULT_SECONDS)
    released = drop_parts(session, parts)
    session.flush()
    return released


def _is_over(row: UploadSession, now: dt.datetime) -> bool:
    return row.expires_at is not None and row.expires_at <= now


def _aborted_parts(session: Session, session_id: int) -> Sequence[UploadPart] | None:
    row = session.get(UploadSession, session_id, populate_existing=True)
    if row is None or row.state != SessionState.ABORTED:
        return None
    return parts_of(session, session_id, limit=_PAGE_PARTS)


def _lock_aborted(session: Session, session_id: int) -> UploadSession | None:
    found = lock_session_by_id(session, session_id)
    return None if found is None or found.row.state != SessionState.ABORTED else found.row


def _drop_aborted(session: Session, session_id: int, numbers: Collection[int]) -> None:
    """Delete the rows of parts whose files are gone; another process may have been faster."""
    row = _lock_aborted(session, session_id)
    if row is None:
        return
    gone = session.scalars(
        sa.select(UploadPart).where(
            UploadPart.session_id == session_id, UploadPart.number.in_(numbers)
        )
    ).all()
    row.part_count -= len(gone)
    row.received_bytes -= sum(part.size_bytes for part in gone)
    drop_parts(session, gone)
    session.flush()


def _delete_aborted(session: Session, session_id: int) -> bool:
    row = _lock_aborted(session, session_id)
    if row is None:
        return False
    session.delete(row)
    session.flush()
    return True
