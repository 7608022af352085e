"""Intents of executions that are over: condemned, their bytes removed a pass later, then probed.

An execution is over when its task has ended, or when the task is at a newer fence and its
checkpoint does not name the key; age alone proves nothing.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.erasing import PLACE_SECONDS, Place, erase, erase_bytes, place_of
from shared.catalog.models import (
    Blob,
    BlobState,
    Location,
    LocationState,
    by_index,
    utc_clock,
    utc_now,
)
from shared.catalog.sweeps.context import PAGE_ROWS, Gone, Pass, SweepContext
from shared.core.failpoints import failpoint
from shared.outbox.schema import tasks
from shared.outbox.states import TERMINAL
from shared.storage.errors import ChannelError


class Writer(NamedTuple):
    """The task that wrote an intent, as far as it tells whether that execution is over."""

    state: str
    fence: int
    checkpoint: object


class Intent(NamedTuple):
    """An intent, as far as it tells which execution wrote it."""

    location_id: int
    key: str
    task_id: int
    fence: int


class Tombstone(NamedTuple):
    """A removed location, whose key may have met a late write, and when it was removed."""

    buried_at: dt.datetime
    place: Place


class LocationSweep:
    """Intents, condemned locations, failed removals and tombstones."""

    name = "locations"

    def __init__(self, context: SweepContext) -> None:
        self._db = context.db
        self._channels = context.channels
        self._limits = context.limits
        self._gone = Gone(self.name)

    def run(self, turn: Pass) -> None:
        """Make one pass. What it condemns loses its bytes in the next one."""
        self._erase_condemned(turn)
        self._condemn_intents(turn)
        self._probe_tombstones(turn)

    def _erase_condemned(self, turn: Pass) -> None:
        seen: set[int] = set()
        while not turn.is_over:
            # What was erased or parked is not among them any more.
            page = self._db.run_session(_condemned_places, read_only=True)
            new = [place for place in page if place.location_id not in seen]
            if not new:
                return
            for place in new:
                seen.add(place.location_id)
                if turn.may_remove("erased", location_id=place.location_id, channel=place.channel):
                    erase(self._db, self._channels, place, deadline=turn.deadline)

    def _condemn_intents(self, turn: Pass) -> None:
        after = 0
        while page := self._page(after):
            after = page[-1].location_id
            writers = self._writers({intent.task_id for intent in page})
            for intent in page:
                turn.check()
                if is_over(writers.get(intent.task_id), intent):
                    turn.counts["intents_over"] += 1
                    turn.counts["condemned"] += self._condemn(intent.location_id)

    def _page(self, after: int) -> Sequence[Intent]:
        age_seconds = self._limits.min_age_seconds
        return self._db.run_session(
            lambda session: page_of_intents(session, after, age_seconds), read_only=True
        )

    def _writers(self, task_ids: set[int]) -> dict[int, Writer]:
        return self._db.run_session(lambda session: read_writers(session, task_ids), read_only=True)

    def _condemn(self, location_id: int) -> bool:
        if self._limits.dry_run:
            return False
        is_condemned = self._db.run_session(lambda session: condemn_intent(session, location_id))
        failpoint("sweep.condemned")
        return is_condemned

    def _probe_tombstones(self, turn: Pass) -> None:
        """Remove what a late write may have left under the key of a tombstone; once.

        A channel that fails is left alone for the rest of the pass: it holds up no other. On one
        that the catalogue does not know they stay due: it may be back with all that is on it.
        """
        away: set[str] = set()
        after: Tombstone | None = None
        while not turn.is_over and (page := self._unprobed(after, away)):
            after = page[-1]
            for tombstone in page:
                place = tombstone.place
                if place.channel not in away and self._channels.find(place.channel) is None:
                    self._gone.note(place.channel)
                    away.add(place.channel)
                if place.channel not in away and turn.may_remove(
                    "probed", location_id=place.location_id, channel=place.channel
                ):
                    away |= set() if self._probe(place, turn) else {place.channel}

    def _unprobed(self, after: Tombstone | None, away: set[str]) -> Sequence[Tombstone]:
        age_seconds = self._limits.tombstone_seconds
        return self._db.run_session(
            lambda session: _unprobed(session, age_seconds, after, away), read_only=True
        )

    def _probe(self, place: Place, turn: Pass) -> bool:
        found = self._channels.find(place.channel)
        if found is None:
            return False
        try:
            erase_bytes(found[0], place, deadline=turn.deadline.within(PLACE_SECONDS))
        except ChannelError:
            # Not probed then: the next pass tries again.
            turn.counts["probes_failed"] += 1
            return False
        failpoint("sweep.probed")
        self._db.run_session(lambda session: _note_probe(session, place.location_id))
        return True


def is_over(writer: Writer | None, intent: Intent) -> bool:
    """Tell whether the execution that wrote an intent can neither commit nor go on with it."""
    if writer is None or writer.state in TERMINAL:
        return True
    return intent.fence < writer.fence and intent.key not in json.dumps(writer.checkpoint)


def read_writers(session: Session, task_ids: Iterable[int]) -> dict[int, Writer]:
    """Return the tasks of these ids; purged ones are left out, their executions are over."""
    rows = session.execute(
        sa.select(tasks.c.id, tasks.c.state, tasks.c.fence, tasks.c.checkpoint).where(
            tasks.c.id.in_(sorted(task_ids))
        )
    )
    return {row.id: Writer(row.state, row.fence, row.checkpoint) for row in rows}


def condemn_intent(session: Session, location_id: int) -> bool:
    """Take an intent under its row lock, if the execution that wrote it is over; tells whether.

    From then on no commit accepts it and no later execution goes on with it.
    """
    row = session.scalars(
        sa.select(Location).where(Location.id == location_id).with_for_update()
    ).one_or_none()
    if row is None or row.state != LocationState.INTENT:
        return False
    writers = read_writers(session, [row.task_id])
    if not is_over(writers.get(row.task_id), Intent(row.id, row.key, row.task_id, row.fence)):
        return False
    row.state, row.condemned_at = LocationState.CONDEMNED, utc_clock()
    session.flush()
    return True


def page_of_intents(session: Session, after: int, age_seconds: float) -> Sequence[Intent]:
    """Return a page of intents that are old enough, those with an id above `after`."""
    statement = (
        sa.select(Location.id, Location.key, Location.task_id, Location.fence)
        .where(
            Location.state == LocationState.INTENT,
            Location.id > after,
            Location.created_at <= utc_now(-age_seconds),
        )
        .order_by(Location.id)
        .limit(PAGE_ROWS)
    )
    rows = session.execute(by_index(statement, Location, "ix_locations_state"))
    return [Intent(*row) for row in rows]


def _condemned_places(session: Session) -> list[Place]:
    """Return condemned locations, and failed removals that no delete task looks after."""
    condemned = sa.select(Location).where(
        Location.state == LocationState.CONDEMNED,
        sa.or_(Location.next_try_at.is_(None), Location.next_try_at <= utc_now()),
    )
    failed = (
        sa.select(Location)
        .outerjoin(Blob, Blob.id == Location.blob_id)
        .where(
            Location.state == LocationState.DELETE_FAILED,
            Location.next_try_at <= utc_now(),
            sa.or_(Blob.id.is_(None), Blob.state != BlobState.DELETING),
        )
    )
    return [
        place_of(row)
        for statement in (condemned, failed)
        for row in session.scalars(statement.order_by(Location.id).limit(PAGE_ROWS))
    ]


def _unprobed(
    session: Session, age_seconds: float, after: Tombstone | None, away: set[str]
) -> Sequence[Tombstone]:
    statement = sa.select(Location).where(
        Location.state == LocationState.TOMBSTONE,
        Location.probed_at.is_(None),
        Location.tombstone_at <= utc_now(-age_seconds),
        Location.channel.not_in(sorted(away)),
    )
    if after is not None:
        statement = statement.where(
            Location.tombstone_at >= after.buried_at,
            sa.or_(
                Location.tombstone_at > after.buried_at,
                Location.id > after.place.location_id,
            ),
        )
    rows = session.scalars(statement.order_by(Location.tombstone_at, Location.id).limit(PAGE_ROWS))
    return [Tombstone(row.tombstone_at, place_of(row)) for row in rows if row.tombstone_at]


def _note_probe(session: Session, location_id: int) -> None:
    session.execute(
        sa.update(Location)
        .where(Location.id == location_id, Location.state == LocationState.TOMBSTONE)
        .values(probed_at=utc_clock())
        .execution_options(synchronize_session=False)
    )
