"""Stretches of a body that have come: named by rows, so that no sweep takes their files.

Only the execution that owns the pull's task writes them, in fenced transactions.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import OriginSegment, utc_clock


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch, in staging."""

    number: int
    staging_key: str
    size: int


def segments_of(session: Session, pull_id: int) -> tuple[Segment, ...]:
    """Return what has come of a pull, in order."""
    rows = session.scalars(
        sa.select(OriginSegment)
        .where(OriginSegment.pull_id == pull_id)
        .order_by(OriginSegment.number)
        .execution_options(populate_existing=True)
    )
    return tuple(Segment(row.number, row.staging_key, row.size_bytes) for row in rows)


def add_segment(session: Session, pull_id: int, segment: Segment) -> None:
    """Name a file that is durable in staging."""
    session.add(
        OriginSegment(
            pull_id=pull_id,
            number=segment.number,
            staging_key=segment.staging_key,
            size_bytes=segment.size,
            created_at=utc_clock(),
        )
    )
    session.flush()


def drop_segments(session: Session, pull_id: int) -> tuple[str, ...]:
    """Name the files no more; returns them, for whoever commits to remove."""
    keys = tuple(segment.staging_key for segment in segments_of(session, pull_id))
    if keys:
        session.execute(
            sa.delete(OriginSegment)
            .where(OriginSegment.pull_id == pull_id)
            .execution_options(synchronize_session=False)
        )
    return keys
