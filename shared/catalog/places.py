"""Where a blob's bytes are: its stored locations, read under the blob's lock or as a first look."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Location, LocationState


def stored_on(
    session: Session, blob_id: int, channel: str, *, besides: int | None = None
) -> int | None:
    """Return the oldest stored location of a blob on a channel, but for the one `besides`."""
    return session.scalar(
        sa.select(sa.func.min(Location.id)).where(
            Location.blob_id == blob_id,
            Location.state == LocationState.STORED,
            Location.channel == channel,
            Location.id != (besides or 0),
        )
    )


def stored_places(
    session: Session, blob_id: int, *, besides: Collection[int] = ()
) -> list[Location]:
    """Return all stored locations of a blob by id, but for those `besides`."""
    return list(
        session.scalars(
            sa.select(Location)
            .where(
                Location.blob_id == blob_id,
                Location.state == LocationState.STORED,
                Location.id.not_in(sorted(besides)),
            )
            .order_by(Location.id)
            .execution_options(populate_existing=True)
        )
    )


def lock_location(session: Session, location_id: int) -> Location | None:
    """Lock a location after its blob; None when it is not there."""
    return session.scalars(
        sa.select(Location)
        .where(Location.id == location_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()
