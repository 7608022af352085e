"""Removing the bytes of one location from its channel, and noting it: for delete tasks and sweeps.

Not found is success. A channel that fails parks the location until a later try; nothing waits here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import sqlalchemy as sa
import structlog
from sqlalchemy.orm import Session

from shared.catalog.models import Location, LocationState, utc_clock, utc_now
from shared.core.clock import Deadline
from shared.core.failpoints import failpoint
from shared.outbox.db import Database
from shared.storage.awake import awake
from shared.storage.errors import BreakerOpen, ChannelError, DeadlinePassed
from shared.storage.registry import OpenChannel

#: A location that keeps failing is tried again after this, doubling, up to the cap.
FIRST_WAIT_SECONDS = 30.0
LONGEST_WAIT_SECONDS = 6 * 3600.0
#: Seconds that the calls for one location may take.
PLACE_SECONDS = 60.0
#: Characters of an error that a location's row keeps.
_DETAIL_CHARACTERS = 2000

_log = structlog.get_logger("catalog.erasing")


class ChannelBook(Protocol):
    """Where channels are found by name. `ChannelCatalogue` is one."""

    def find(self, name: str) -> tuple[OpenChannel, bool] | None:
        """Return a channel and whether it may take new bytes; None when there is none."""


@dataclass(frozen=True, slots=True)
class Place:
    """A location whose bytes are to go."""

    location_id: int
    channel: str
    key: str
    upload_id: str | None
    tries: int


def wait_after_failures(tries: int) -> float:
    """Return the seconds until a location is tried again that has failed `tries` times."""
    if tries < 1:
        raise ValueError("failures are counted from 1")
    return float(min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** min(tries - 1, 30)))


def erase(
    db: Database,
    channels: ChannelBook,
    place: Place,
    *,
    deadline: Deadline,
    check: Callable[[], None] | None = None,
) -> bool:
    """Delete a location's bytes and its open upload, and make it a tombstone; False when parked.

    The caller owns the location: no execution may write there or commit it any more. `check` is
    asked while the channel does not answer.
    """
    found = channels.find(place.channel)
    if found is None:
        return _parked(db, place, "the channel is not in the catalogue")
    try:
        erase_bytes(found[0], place, deadline=deadline.within(PLACE_SECONDS), check=check)
    except BreakerOpen as error:
        # Says nothing of this location: not a failure of its own.
        return _parked(db, place, str(error), seconds=error.retry_after_seconds)
    except DeadlinePassed as error:
        if deadline.expired():
            raise
        return _parked(db, place, str(error))
    except ChannelError as error:
        return _parked(db, place, str(error))
    failpoint("delete.after_bytes")
    db.run_session(lambda session: bury(session, place.location_id))
    return True


def erase_bytes(
    opened: OpenChannel,
    place: Place,
    *,
    deadline: Deadline,
    check: Callable[[], None] | None = None,
) -> None:
    """Delete what a location's key and upload name on the channel; nothing there is fine."""

    def work() -> None:
        if place.upload_id:
            opened.channel.abort_upload(place.key, place.upload_id, deadline=deadline)
        opened.channel.delete(place.key, deadline=deadline)

    if check is None:
        work()
    else:
        awake(work, check=check, deadline=deadline)


def places(session: Session, blob_id: int) -> list[Place]:
    """Return the locations that are due, by ascending id: intents too, tombstones not."""
    rows = session.scalars(
        sa.select(Location)
        .where(
            Location.blob_id == blob_id,
            Location.state != LocationState.TOMBSTONE,
            sa.or_(Location.next_try_at.is_(None), Location.next_try_at <= utc_now()),
        )
        .order_by(Location.id)
    )
    return [place_of(row) for row in rows]


def place_of(row: Location) -> Place:
    """Return what deleting a location needs."""
    return Place(row.id, row.channel, row.key, row.upload_id, row.tries)


def bury(session: Session, location_id: int) -> bool:
    """Make a location a tombstone: its bytes are gone. It is probed once more later."""
    return _update_unburied(
        session,
        location_id,
        state=LocationState.TOMBSTONE,
        tombstone_at=utc_clock(),
        next_try_at=None,
        error_detail=None,
    )


def park(session: Session, location_id: int, *, tries: int, seconds: float, detail: str) -> bool:
    """Note that a location's bytes could not be deleted, and when to try again."""
    return _update_unburied(
        session,
        location_id,
        state=LocationState.DELETE_FAILED,
        tries=tries,
        next_try_at=utc_now(seconds),
        error_detail=detail[:_DETAIL_CHARACTERS],
    )


def _update_unburied(session: Session, location_id: int, **values: object) -> bool:
    done = session.execute(
        sa.update(Location)
        .where(Location.id == location_id, Location.state != LocationState.TOMBSTONE)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    return int(done.rowcount) == 1  # type: ignore[attr-defined]


def _parked(db: Database, place: Place, detail: str, *, seconds: float | None = None) -> bool:
    tries = place.tries + (1 if seconds is None else 0)
    wait_seconds = wait_after_failures(tries) if seconds is None else seconds
    _log.warning(
        "location_parked",
        location_id=place.location_id,
        channel=place.channel,
        tries=tries,
        wait_seconds=wait_seconds,
        error=detail,
    )
    db.run_session(
        lambda session: park(
            session, place.location_id, tries=tries, seconds=wait_seconds, detail=detail
        )
    )
    return False
