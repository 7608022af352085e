"""Uploads that are completed and whose versions are still to be made, as others of the key see it.

Until then nothing but the key's generation tells of them; a later version that is or was readable
ends them by itself (`puts.lock_put`), whatever leaves no version has to ask here.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Bucket, SessionState, UploadSession, by_index, utc_clock, utc_now
from shared.catalog.uploading.sessions import lock_session_by_id

#: Those with a task, and those whose task may get a new life.
_ARRIVING = (SessionState.COMPLETING, SessionState.FAILED)


def is_arriving(session: Session, bucket: Bucket, key: str) -> bool:
    """Tell whether a completed upload of this key is being joined."""
    found = session.scalars(_of_key(bucket, key, (SessionState.COMPLETING,)).limit(1))
    return found.one_or_none() is not None


def end_arriving(session: Session, bucket: Bucket, key: str) -> list[int]:
    """Let no upload that was completed before come after a DELETE of its key.

    The caller holds the key's locks, and supersedes the tasks that are returned, last. The parts
    go with the next cleanup; no failed one is tried again.
    """
    task_ids = []
    for session_id in sorted(session.scalars(_of_key(bucket, key, _ARRIVING)).all()):
        found = lock_session_by_id(session, session_id)
        if found is None or found.row.state not in _ARRIVING:
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
        elif row.part_count:
            row.expires_at = utc_now()
    session.flush()
    return task_ids


def _of_key(bucket: Bucket, key: str, states: Sequence[SessionState]) -> sa.Select[int]:
    statement = sa.select(UploadSession.id).where(
        UploadSession.tenant_id == bucket.tenant_id,
        UploadSession.state.in_(states),
        UploadSession.bucket_id == bucket.id,
        UploadSession.key == key,
    )
    return by_index(statement, UploadSession, "ix_upload_sessions_tenant")
