"""What a backup target has lost, and what was taken for lost and is there after all.

A mark is never the last word: the audit looks at what is damaged again, and so does a restore that
finds the content nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.contents import READABLE, lock_content_ids, stored_contents
from shared.catalog.locking import lock_blobs
from shared.catalog.models import (
    BackupContent,
    BackupContentState,
    Blob,
    by_index,
    utc_now,
)

#: Between two looks at what stays damaged; each look adds as much again, up to the most.
AGAIN_SECONDS = 86_400.0
MOST_AGAIN_SECONDS = 7 * 86_400.0


def note_damage(session: Session, content_id: int, *, detail: str) -> bool:
    """Remember that a content is missing or has other bytes: no run names it again.

    Tells whether it was believed to be good.
    """
    content = lock_content_ids(session, [content_id]).get(content_id)
    if content is None or content.state not in READABLE:
        return False
    content.state, content.error_detail = BackupContentState.DAMAGED, detail[:2000]
    content.tries, content.next_try_at = 0, None
    session.flush()
    return True


def note_right(session: Session, content_id: int) -> bool:
    """Take back the mark of a content that was proven to be right; tells whether it had one.

    It is spare where a run has stored the content anew meanwhile.
    """
    found = session.get(BackupContent, content_id, populate_existing=True)
    if found is None or found.state != BackupContentState.DAMAGED:
        return False
    # As the commit of an item does, which may store the same content now.
    lock_blobs(session, _blobs_of(session, found))
    content = lock_content_ids(session, [content_id]).get(content_id)
    if content is None or content.state != BackupContentState.DAMAGED:
        return False
    held = stored_contents(session, content.target, content.tenant_id, [content.sha256])
    is_spare = content.kind == "content" and (content.sha256, content.size_bytes) in held
    content.state = BackupContentState.SPARE if is_spare else BackupContentState.STORED
    content.error_detail, content.tries, content.next_try_at = None, 0, None
    session.flush()
    return True


def note_still_damaged(session: Session, content_id: int) -> None:
    """Remember that a damaged content was looked at again in vain."""
    content = lock_content_ids(session, [content_id]).get(content_id)
    if content is None or content.state != BackupContentState.DAMAGED:
        return
    content.tries += 1
    content.next_try_at = utc_now(min(MOST_AGAIN_SECONDS, AGAIN_SECONDS * content.tries))
    session.flush()


def damaged_contents(
    session: Session, target: str, tenant_id: str, *, limit: int
) -> Sequence[BackupContent]:
    """Return damaged contents of a tenant that are to be looked at again."""
    statement = sa.select(BackupContent).where(
        BackupContent.target == target,
        BackupContent.tenant_id == tenant_id,
        BackupContent.state == BackupContentState.DAMAGED,
        sa.or_(BackupContent.next_try_at.is_(None), BackupContent.next_try_at <= utc_now()),
    )
    statement = by_index(statement, BackupContent, "ix_backup_contents_tenant")
    return session.scalars(statement.order_by(BackupContent.id).limit(limit)).all()


def _blobs_of(session: Session, content: BackupContent) -> Sequence[int]:
    if content.kind != "content":
        return ()
    return session.scalars(
        sa.select(Blob.id).where(
            Blob.tenant_id == content.tenant_id,
            Blob.sha256 == content.sha256,
            Blob.size_bytes == content.size_bytes,
            Blob.live_slot == 1,
        )
    ).all()
