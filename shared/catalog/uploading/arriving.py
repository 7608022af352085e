"""Uploads that are completed and whose versions are still to be made, as others of the key see it.

Until then nothing but the key's generation tells of them; a later version that is or was readable
ends them by itself (`puts.lock_put`), whatever leaves no version has to ask here.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.listing import under
from shared.catalog.models import Bucket, SessionState, UploadSession, by_index, utc_clock, utc_now
from shared.catalog.uploading.sessions import lock_session_by_id

#: Those with a task, and those whose task may get a new life.
_ENDING = sa.or_(
    UploadSession.state == SessionState.COMPLETING,
    sa.and_(UploadSession.state == SessionState.FAILED, UploadSession.part_count > 0),
)


def is_arriving(session: Session, bucket: Bucket, key: str) -> bool:
    """Tell whether a completed upload of this key is being joined."""
    statement = sa.select(UploadSession.id).where(
        UploadSession.bucket_id == bucket.id,
        UploadSession.key == key,
        UploadSession.state == SessionState.COMPLETING,
    )
    statement = by_index(statement, UploadSession, "ix_upload_sessions_key")
    return session.scalar(statement.limit(1)) is not None


def end_arriving(session: Session, bucket: Bucket, key: str) -> list[int]:
    """Let no upload that was completed before come after a DELETE of its key.

    The caller holds the key's locks, and supersedes the tasks that are returned, last. The parts
    go with the next cleanup; no failed one is tried again.
    """
    statement = sa.select(UploadSession.id).where(
        UploadSession.bucket_id == bucket.id, UploadSession.key == key, _ENDING
    )
    statement = by_index(statement, UploadSession, "ix_upload_sessions_key")
    return _end(session, session.scalars(statement).all())


def end_arriving_under(session: Session, bucket: Bucket, prefix: str) -> list[int]:
    """Do as `end_arriving` for all keys with a prefix; nothing is locked but the uploads.

    Waits for those that are being committed: their versions are there when this returns.
    """
    statement = sa.select(UploadSession.id).where(
        UploadSession.tenant_id == bucket.tenant_id,
        UploadSession.state.in_((SessionState.COMPLETING, SessionState.FAILED)),
        UploadSession.bucket_id == bucket.id,
        *under(UploadSession.key, prefix),
        _ENDING,
    )
    # Not by the keys: most uploads under a prefix have long been done.
    statement = by_index(statement, UploadSession, "ix_upload_sessions_tenant")
    return _end(session, session.scalars(statement).all())


def _end(session: Session, ids: Sequence[int]) -> list[int]:
    task_ids = []
    for session_id in sorted(ids):
        found = lock_session_by_id(session, session_id)
        if found is None:
            continue
        row = found.row
        if row.state == SessionState.COMPLETING:
            row.state = SessionState.FAILED
            row.result = {
                "code": "superseded",
                "detail": "the key was deleted after the upload was completed",
            }
            row.ended_at = utc_clock()
            row.expires_at = utc_now()
            if row.task_id is not None:
                task_ids.append(row.task_id)
        elif row.state == SessionState.FAILED and row.part_count:
            row.expires_at = utc_now()
    session.flush()
    return task_ids
