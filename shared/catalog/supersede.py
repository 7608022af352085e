"""What a newer write does to the older, unfinished ones of its key.

Rows first, then tasks: the caller holds the key's locks, changes all domain rows, and hands the
returned task ids to `Tasks.supersede` last.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.blobs import dispose_staged
from shared.catalog.context import Catalogue
from shared.catalog.locking import LockedKey
from shared.catalog.models import (
    ObjectRow,
    Review,
    ReviewState,
    SessionState,
    UploadSession,
    Version,
    VersionState,
    by_index,
)

_UNDECIDED = (ReviewState.OPEN, ReviewState.DOUBTFUL)
#: What may never be readable: it ends nothing that was asked for before it.
_UNREAD = (VersionState.REVIEWING, VersionState.BLOCKED)


def is_last_word(session: Session, row: ObjectRow, generation: int, *, task_id: int | None) -> bool:
    """Tell whether nothing that counts has come after this generation of a locked key.

    Every later one must be a version's that is in review or was rejected by its review: such a
    version wins when it passes, not before. One that was stored has won, whatever a later review
    says. An upload that was completed after `task_id` was enqueued, and is being joined, wins when
    its version comes. Another one without a version is a deletion or a copy.
    """
    later = row.generation - generation
    if later <= 0:
        return later == 0
    unread = sa.select(sa.func.count()).where(
        Version.object_id == row.id,
        Version.generation > generation,
        Version.state.in_(_UNREAD),
        Version.stored_at.is_(None),
    )
    arriving = sa.select(sa.func.count()).where(
        UploadSession.bucket_id == row.bucket_id,
        UploadSession.key == row.key,
        UploadSession.state == SessionState.COMPLETING,
        UploadSession.task_id > (task_id or 0),
    )
    arriving = by_index(arriving, UploadSession, "ix_upload_sessions_key")
    return (session.scalar(unread) or 0) + (session.scalar(arriving) or 0) == later


def supersede_rows(
    session: Session, catalogue: Catalogue, locked: LockedKey, *, below_generation: int
) -> list[int]:
    """Set the key's older pending, reviewing and failed versions to superseded.

    Returns the ids of their tasks, ascending; some may have ended already. The object row is not
    refreshed.
    """
    older = locked.unfinished(below_generation=below_generation)
    return end_versions(session, catalogue, locked, older, state=VersionState.SUPERSEDED)


def end_versions(
    session: Session,
    catalogue: Catalogue,
    locked: LockedKey,
    versions: list[Version],
    *,
    state: VersionState,
) -> list[int]:
    """Set unfinished versions to a final state, give up their staging bytes and staged blobs.

    The files are among `locked.released` then.

    Returns the ids of their tasks, ascending.
    """
    if not versions:
        return []
    reviewing = [v.id for v in versions if v.state == VersionState.REVIEWING]
    for version in versions:
        if version.staging_key is not None:
            locked.released.append(version.staging_key)
        version.state = state
        version.ended_at = locked.now
        version.staging_key = None
        version.staging_until = None
    session.flush()
    for version_id in reviewing:
        # One by one, by the unique key: a list may be answered by a scan, which locks as it goes.
        session.execute(
            sa.update(Review)
            .where(Review.version_id == version_id, Review.state.in_(_UNDECIDED))
            .values(state=ReviewState.SUPERSEDED, decided_at=locked.now)
            .execution_options(synchronize_session=False)
        )
    for version in versions:
        blob = locked.blobs.get(version.blob_id)
        if blob is not None:
            dispose_staged(session, catalogue, blob)
    return sorted({version.task_id for version in versions if version.task_id is not None})
