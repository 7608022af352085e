"""Misses whose time is over, pulls that ended a week ago, and stretches that no pull needs."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import (
    OriginMiss,
    OriginPull,
    OriginSegment,
    PullState,
    by_index,
    utc_now,
)
from shared.catalog.sweeps.context import PAGE_ROWS, Pass, SweepContext

#: How long the record of a pull that ended is kept.
KEEP_SECONDS = 7 * 86_400.0


class OriginSweep:
    """Removes rows only: files that they named are the staging sweep's."""

    name = "origins"

    def __init__(self, context: SweepContext) -> None:
        self._context = context

    def run(self, turn: Pass) -> None:
        """Make one pass."""
        for name, remove in (
            ("misses", _remove_misses),
            ("pulls", _remove_pulls),
            ("segments", _remove_segments),
        ):
            while not self._context.limits.dry_run:
                turn.check()
                count = self._context.db.run_session(remove)
                if count == 0:
                    break
                turn.counts[name] += count


def page_of_open_pulls(session: Session, after: int) -> Sequence[tuple[int, int | None]]:
    """Return a page of the open pulls and their tasks, those with an id above `after`."""
    statement = (
        sa.select(OriginPull.id, OriginPull.task_id)
        .where(OriginPull.state == PullState.OPEN, OriginPull.id > after)
        .order_by(OriginPull.id)
        .limit(PAGE_ROWS)
    )
    statement = by_index(statement, OriginPull, "ix_origin_pulls_state")
    return [(row[0], row[1]) for row in session.execute(statement)]


def _remove_misses(session: Session) -> int:
    keys = session.execute(
        sa.select(OriginMiss.bucket_id, OriginMiss.key)
        .where(OriginMiss.expires_at < utc_now())
        .order_by(OriginMiss.expires_at)
        .limit(PAGE_ROWS)
    ).all()
    for bucket_id, key in keys:
        # Again: it may have been missed anew meanwhile.
        session.execute(
            sa.delete(OriginMiss)
            .where(
                OriginMiss.bucket_id == bucket_id,
                OriginMiss.key == key,
                OriginMiss.expires_at < utc_now(),
            )
            .execution_options(synchronize_session=False)
        )
    return len(keys)


def _remove_pulls(session: Session) -> int:
    ids = session.scalars(
        sa.select(OriginPull.id)
        .where(OriginPull.ended_at < utc_now(-KEEP_SECONDS))
        .order_by(OriginPull.ended_at)
        .limit(PAGE_ROWS)
    ).all()
    if ids:
        # A pull that was opened again has no end.
        session.execute(
            sa.delete(OriginPull)
            .where(OriginPull.id.in_(sorted(ids)), OriginPull.ended_at.is_not(None))
            .execution_options(synchronize_session=False)
        )
    return len(ids)


def _remove_segments(session: Session) -> int:
    """Remove stretches of pulls that are over: a worker may have kept one too late."""
    rows = session.execute(
        sa.select(OriginSegment.pull_id, OriginSegment.number)
        .outerjoin(OriginPull, OriginPull.id == OriginSegment.pull_id)
        .where(sa.or_(OriginPull.id.is_(None), OriginPull.state != PullState.OPEN))
        .limit(PAGE_ROWS)
    ).all()
    for pull_id, number in rows:
        session.execute(
            sa.delete(OriginSegment)
            .where(OriginSegment.pull_id == pull_id, OriginSegment.number == number)
            .execution_options(synchronize_session=False)
        )
    return len(rows)
