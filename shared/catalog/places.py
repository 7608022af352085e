"""Where a blob's bytes are: its stored locations, read under the blob's lock or as a first look."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Location, LocationState, Loss, LossState, Replica, by_index

#: Losses whose location was never found right again. One that nobody needed any more counts: the
#: content may be asked for anew while the location still stands.
LOST = (LossState.OPEN, LossState.UNRECOVERABLE, LossState.FAILED, LossState.SUPERSEDED)


def is_good() -> sa.ColumnElement[bool]:
    """Return the condition that a location is stored and not known to be lost."""
    # Counted, and by the rows of this location and content: of EXISTS the planner may make a list
    # of all losses and copies there are, in every transaction that writes.
    reported = sa.select(sa.func.count()).where(
        Loss.location_id == Location.id, Loss.state.in_(LOST)
    )
    repaired = sa.select(sa.func.count()).where(
        Replica.blob_id == Location.blob_id, Replica.lost_location_id == Location.id
    )
    return sa.and_(
        Location.state == LocationState.STORED,
        by_index(reported, Loss, "uq_losses_location").scalar_subquery() == 0,
        by_index(repaired, Replica, "uq_replicas_blob").scalar_subquery() == 0,
    )


def stored_on(
    session: Session, blob_id: int, channel: str, *, besides: int | None = None
) -> int | None:
    """Return the oldest stored location of a blob on a channel, but for the one `besides`.

    One that is known to be lost is none: a proven copy must not give way to it.
    """
    return session.scalar(
        sa.select(sa.func.min(Location.id)).where(
            Location.blob_id == blob_id,
            is_good(),
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


def lost_places(session: Session, blob_id: int) -> list[int]:
    """Return the stored locations of a blob that are known to be lost: they prove nothing."""
    return list(
        session.scalars(
            sa.select(Location.id).where(
                Location.blob_id == blob_id,
                Location.state == LocationState.STORED,
                ~is_good(),
            )
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
