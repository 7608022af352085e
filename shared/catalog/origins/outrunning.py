"""Deletions that come while an origin's answer is on its way: the pull has lost.

A pull fills a key only at the generation that it was begun at. A key that was never written has no
row whose generation could grow, and one of many keys may have none either.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.listing import under
from shared.catalog.models import OriginPull, PullState, by_index

#: No object has it, so that a pull at this generation drops what comes.
_NEVER = -1
#: Pulls that one statement ends.
_BATCH = 500


def is_pulled(session: Session, bucket_id: int, key: str) -> bool:
    """Tell whether a pull of this key is under way. Nothing is locked."""
    found = sa.exists().where(
        OriginPull.bucket_id == bucket_id, OriginPull.key == key, OriginPull.open_slot == 1
    )
    return session.scalar(sa.select(found)) is True


def outrun(session: Session, bucket_id: int, prefix: str) -> None:
    """Let all pulls under a prefix that are under way find that somebody else has won.

    Waits for those that are being committed: their versions are there when this returns.
    """
    statement = sa.select(OriginPull.id).where(
        OriginPull.state == PullState.OPEN,
        OriginPull.bucket_id == bucket_id,
        *under(OriginPull.key, prefix),
    )
    found = session.scalars(by_index(statement, OriginPull, "ix_origin_pulls_state")).all()
    ids = sorted(found)
    for first in range(0, len(ids), _BATCH):
        session.execute(
            sa.update(OriginPull)
            .where(
                OriginPull.id.in_(ids[first : first + _BATCH]), OriginPull.state == PullState.OPEN
            )
            .values(generation=_NEVER)
            .execution_options(synchronize_session=False)
        )
