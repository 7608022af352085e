"""The rows of the look at what is really on the channels."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shared.catalog.models import (
    Blob,
    BlobState,
    Location,
    LocationAudit,
    LocationState,
    by_index,
    utc_clock,
    utc_now,
)


class Place(NamedTuple):
    """A stored location of a live blob, as it should be."""

    location_id: int
    key: str
    etag: str | None
    size_bytes: int
    sha256: str


def begin(session: Session, *, channel: str) -> LocationAudit:
    """Return how far the look at a channel has come."""
    row = session.get(LocationAudit, channel)
    if row is None:
        row = LocationAudit(channel=channel, started_at=utc_clock(), turned_at=utc_clock())
        try:
            with session.begin_nested():
                session.add(row)
        except IntegrityError:
            return session.get_one(LocationAudit, channel)
        session.refresh(row)
    return row


def forget(session: Session, *, names: Collection[str]) -> None:
    """Drop what was noted of channels that are not there any more."""
    session.execute(
        sa.delete(LocationAudit)
        .where(LocationAudit.channel.not_in(sorted(names)))
        .execution_options(synchronize_session=False)
    )


def page(session: Session, *, audit: LocationAudit, channel: str, limit: int) -> list[Place]:
    """Return the next locations to look at."""
    statement = (
        _places()
        .where(
            Location.channel == channel,
            Location.state == LocationState.STORED,
            Location.id > audit.cursor,
        )
        .order_by(Location.id)
        .limit(limit)
    )
    statement = by_index(statement, Location, "ix_locations_channel")
    return [Place._make(row) for row in session.execute(statement)]


def again(session: Session, *, audit: LocationAudit, channel: str, limit: int) -> list[Place]:
    """Return the locations that wait for a second look."""
    ids = sorted(suspects_of(audit))[:limit]
    statement = _places().where(
        Location.id.in_(ids),
        Location.channel == channel,
        Location.state == LocationState.STORED,
    )
    return [Place._make(row) for row in session.execute(statement.order_by(Location.id))]


def is_early(session: Session, *, audit: LocationAudit, seconds: float) -> bool:
    """Tell whether the last turn was less than so many seconds ago."""
    earliest = session.scalar(sa.select(utc_now(-seconds)))
    return earliest is not None and audit.turned_at > earliest


def suspects_of(audit: LocationAudit) -> dict[int, str]:
    """Return the locations of the last look that were not as they should be, and why."""
    return {int(key): str(fault) for key, fault in (audit.suspects or {}).items()}


def end(
    session: Session,
    *,
    audit: LocationAudit,
    cursor: int,
    suspects: dict[int, str],
    checked: int,
    lost: int,
    error: str | None,
) -> bool:
    """Note a turn, unless another process has noted one meanwhile; `cursor` 0 ends the pass."""
    values: dict[str, object] = {
        "cursor": cursor,
        "suspects": {str(key): fault for key, fault in suspects.items()} or None,
        "checked": LocationAudit.checked + checked,
        "lost": LocationAudit.lost + lost,
        "error_detail": error,
        "turned_at": utc_clock(),
    }
    if cursor == 0 and error is None:
        values |= {"passed_at": utc_clock()}
    if audit.cursor == 0:
        values |= {"checked": checked, "lost": lost, "started_at": utc_clock()}
    done = session.execute(
        sa.update(LocationAudit)
        .where(LocationAudit.channel == audit.channel, LocationAudit.turned_at == audit.turned_at)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    return cast("sa.CursorResult[object]", done).rowcount == 1


def keep_etag(session: Session, *, place: Place, etag: str) -> None:
    """Note the ETag of bytes that were written anew and proven to be the right ones."""
    session.execute(
        sa.update(Location)
        .where(Location.id == place.location_id, Location.state == LocationState.STORED)
        .values(etag=etag[:255])
        .execution_options(synchronize_session=False)
    )


def _places() -> sa.Select[int, str, str | None, int, str]:
    return (
        sa.select(Location.id, Location.key, Location.etag, Blob.size_bytes, Blob.sha256)
        .join(Blob, Blob.id == Location.blob_id)
        .where(Blob.state == BlobState.LIVE)
    )
