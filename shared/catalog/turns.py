"""A write's place in the order of its key: taken when it is acknowledged, asked when it is made.

For most writes both are one transaction. Where the bytes are ready only later, the generation is
taken before, and whoever has written since has won.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.conditions import Conditions
from shared.catalog.limits import check_key
from shared.catalog.locking import Content, LockedKey, lock_key, share_bucket
from shared.catalog.models import Bucket, Version, VersionState
from shared.core.errors import SupersededError


def lock_turn(session: Session, bucket_id: int, key: str) -> tuple[Bucket, LockedKey]:
    """Take the locks that `take_turn` needs. Raises NotFoundError (`bucket_not_found`)."""
    check_key(key)
    bucket = share_bucket(session, bucket_id)
    return bucket, lock_made(session, bucket, key)


def take_turn(session: Session, locked: LockedKey, conditions: Conditions) -> int:
    """Acknowledge a write whose bytes are not ready yet: whoever writes after this has won.

    Returns the generation that is taken for it. Raises PreconditionError; then nothing is written.
    """
    judge(conditions, locked)
    locked.row.generation += 1
    session.flush()
    return locked.row.generation


def lock_made(
    session: Session, bucket: Bucket, key: str, content: Content | None = None
) -> LockedKey:
    """Lock a key of a bucket whose lock is held, and make it if it is missing."""
    locked = lock_key(session, bucket.id, key, create=True, content=content)
    if locked is None:
        raise LookupError("a key that is to be made is always there")
    return locked


def judge(conditions: Conditions, locked: LockedKey) -> None:
    """Raise PreconditionError unless the conditions hold for what the key serves now."""
    served = locked.served
    conditions.judge(None if served is None else served.etag)


def refuse_overwritten(session: Session, locked: LockedKey, generation: int) -> None:
    """Raise SupersededError if a later write is or was readable; one in review does not count.

    Also one that is deleted by now: what it has overwritten does not come back.
    """
    if locked.row.generation <= generation:
        return
    newer = sa.exists().where(
        Version.object_id == locked.row.id,
        Version.generation > generation,
        sa.or_(
            Version.state.not_in((VersionState.REVIEWING, VersionState.BLOCKED)),
            Version.stored_at.is_not(None),
        ),
    )
    if session.scalar(sa.select(newer)):
        raise SupersededError("a later write of the key has won", generation=generation)
