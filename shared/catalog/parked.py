"""Copies whose bytes could not be deleted yet: what an operator looks at when a channel is away."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Location, LocationState


def list_parked(
    session: Session, *, after: int = 0, limit: int = 100, channel: str | None = None
) -> Sequence[Location]:
    """Return parked locations by id, those behind `after`, of one channel or all."""
    statement = sa.select(Location).where(
        Location.state == LocationState.DELETE_FAILED, Location.id > after
    )
    if channel is not None:
        statement = statement.where(Location.channel == channel)
    return session.scalars(statement.order_by(Location.id).limit(limit)).all()


def count_parked(session: Session) -> dict[str, int]:
    """Return how many locations are parked, per channel that has any."""
    rows = session.execute(
        sa.select(Location.channel, sa.func.count())
        .where(Location.state == LocationState.DELETE_FAILED)
        .group_by(Location.channel)
    )
    return {channel: int(count) for channel, count in rows}
