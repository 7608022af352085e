"""The rows of `lanes`: which (queue, region, tenant, priority) have pending rows, from where on.

A lane row is written only in short transactions of its own, never in one that holds another row,
several in ascending order; so nobody who enqueues ever waits for it.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from shared.core.clock import monotonic
from shared.outbox.context import OutboxContext
from shared.outbox.db import Database, Line
from shared.outbox.statements import fill as statements
from shared.outbox.window import EPOCH, Place

#: A process remembers for this long that a lane is there.
REMEMBER_SECONDS = 30.0
#: A lane that was not touched for this long is touched before it is remembered ...
TOUCH_SECONDS = 20.0
#: ... so that it cannot have been dropped, which takes this long, while somebody remembers it.
IDLE_SECONDS = 60.0
#: Added to the age of rows whose commit came late: reading a few more costs little.
_LATE_MARGIN_SECONDS = 30.0
#: Lanes that one statement looks into.
_LOOK = 50
#: Lanes kept in memory before the oldest memories are dropped.
_MAX_REMEMBERED = 10_000


class LaneKey(NamedTuple):
    """The primary key of a lane. Tuples of this order are taken everywhere."""

    queue: str
    region: str
    tenant_id: str
    priority: int


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane as it was read: pending rows are claimed from the watermark on."""

    tenant_id: str
    priority: int
    weight: int
    watermark: dt.datetime
    version: int


class Lanes:
    """Makes sure that pending rows have their lane. Thread-safe."""

    def __init__(self, context: OutboxContext) -> None:
        self._db = context.db
        self._lock = threading.Lock()
        self._remembered: dict[tuple[str, str, str, int], float] = {}

    def ensure(self, lanes: Sequence[tuple[str, str, str, int]], late_seconds: float = 0.0) -> None:
        """Insert the lanes that are missing; call it after the commit that left rows pending.

        Where that commit came `late_seconds` after the first of the rows was written, their
        watermarks are lowered: the filler may have read past that moment.

        A plain read when this process has not looked for half a minute, an insert only where
        that finds nothing. Raises UnavailableError; the filler's look each minute makes up for it.
        """
        if late_seconds:
            lower_lanes_by(self._db, lanes, late_seconds + _LATE_MARGIN_SECONDS)
        now = monotonic()
        with self._lock:
            unknown = sorted({lane for lane in lanes if self._remembered.get(lane, 0.0) <= now})
        if not unknown:
            return
        insert_lanes(self._db, unknown)
        with self._lock:
            if len(self._remembered) + len(unknown) > _MAX_REMEMBERED:
                self._remembered.clear()
            # Counted from before the read.
            self._remembered.update(dict.fromkeys(unknown, now + REMEMBER_SECONDS))


def insert_lanes(
    db: Database, lanes: Sequence[tuple[str, str, str, int]], *, line: Line | None = None
) -> None:
    """Insert or touch those of these lanes that were not touched lately."""
    sql = db.dialect.sql

    def missing(cursor: Any) -> list[tuple[str, str, str, int]]:
        found = []
        for lane in lanes:
            cursor.execute(sql(statements.IS_LANE_FRESH), (*lane, -TOUCH_SECONDS))
            if cursor.fetchone() is None:
                found.append(lane)
        return found

    def write(cursor: Any) -> None:
        for lane in stale:
            # The update waits for whoever is dropping the lane; then there is nothing to update.
            cursor.execute(sql(statements.TOUCH_LANE), lane)
            if cursor.rowcount == 0:
                cursor.execute(sql(statements.INSERT_LANE), (*lane, db.dialect.from_time(EPOCH)))

    stale = sorted(db.run(missing, line=line, read_only=True))
    if stale:
        db.run(write, line=line)


def lower_lanes(
    db: Database,
    rows: Iterable[tuple[tuple[str, str, str, int], dt.datetime]],
    *,
    line: Line | None = None,
) -> None:
    """Let the filler see rows that were made pending and are older than their lane's watermark.

    `rows` are (lane, order_at); call it after the commit that made them pending, never inside it.
    A lane that is missing is inserted. When it is lost to a crash, the filler finds the rows within
    a minute. Raises UnavailableError.
    """
    lowest: dict[tuple[str, str, str, int], dt.datetime] = {}
    for lane, order_at in rows:
        if lane not in lowest or order_at < lowest[lane]:
            lowest[lane] = order_at
    sql = db.dialect.sql

    def lower(cursor: Any) -> None:
        for lane in sorted(lowest):
            cursor.execute(sql(statements.LOWER_LANE), (db.dialect.from_time(lowest[lane]), *lane))
            if cursor.rowcount == 0:
                cursor.execute(sql(statements.INSERT_LANE), (*lane, db.dialect.from_time(EPOCH)))

    if lowest:
        db.run(lower, line=line)


def lower_lanes_by(
    db: Database, lanes: Sequence[tuple[str, str, str, int]], seconds: float
) -> None:
    """Do as `lower_lanes` for rows of which only the age is known."""
    sql = db.dialect.sql(statements.LOWER_LANE_BY)

    def lower(cursor: Any) -> None:
        for lane in sorted(lanes):
            # Without a lane there is no watermark: it is inserted at the start of time.
            cursor.execute(sql, (-seconds, *lane))

    db.run(lower)


def read_lanes(db: Database, place: Place, *, line: Line) -> tuple[list[Lane], dt.datetime]:
    """Read the lanes of a place without locks, and the database's clock (EPOCH without lanes)."""
    to_time = db.dialect.to_time

    def read(cursor: Any) -> tuple[list[Lane], dt.datetime]:
        cursor.execute(db.dialect.sql(statements.LANES), place)
        rows = cursor.fetchall()
        lanes = [
            Lane(row[0], int(row[1]), max(1, int(row[2])), to_time(row[3]) or EPOCH, int(row[4]))
            for row in rows
        ]
        return lanes, (to_time(rows[0][5]) if rows else None) or EPOCH

    return db.run(read, line=line, read_only=True)


def have_pending(
    db: Database,
    place: Place,
    lanes: Sequence[tuple[str, int, dt.datetime]],
    *,
    line: Line,
) -> list[bool]:
    """Tell for each (tenant, priority, bound) whether a pending row stands at its bound or on."""
    column = db.dialect.sql(statements.HAS_PENDING)

    def look(cursor: Any) -> list[bool]:
        found: list[bool] = []
        for start in range(0, len(lanes), _LOOK):
            part = lanes[start : start + _LOOK]
            values: list[Any] = []
            for tenant_id, priority, bound in part:
                values += [*place, tenant_id, priority, db.dialect.from_time(bound)]
            cursor.execute("SELECT " + ",".join([column] * len(part)), values)
            found.extend(bool(answer) for answer in cursor.fetchone())
        return found

    if lanes:
        return db.run(look, line=line, read_only=True)
    return []


def is_overlooked(
    db: Database, place: Place, *, since_seconds: float, until_seconds: float, line: Line
) -> bool:
    """Tell whether a row became pending between these seconds ago, and still is."""
    sql = db.dialect.sql(statements.OVERLOOKED)

    def look(cursor: Any) -> bool:
        cursor.execute(sql, (*place, -since_seconds, -until_seconds))
        return cursor.fetchone() is not None

    return db.run(look, line=line, read_only=True)


def move_watermarks(
    db: Database,
    place: Place,
    moves: Sequence[tuple[str, int, dt.datetime, int]],
    *,
    line: Line,
) -> None:
    """Write (tenant, priority, watermark, version as read) where nobody has lowered meanwhile."""
    sql = db.dialect.sql(statements.MOVE_LANE)

    def move(cursor: Any) -> None:
        for tenant_id, priority, watermark, version in sorted(moves):
            cursor.execute(
                sql, (db.dialect.from_time(watermark), *place, tenant_id, priority, version)
            )

    if moves:
        db.run(move, line=line)


def pending_lanes(db: Database, place: Place, *, line: Line) -> list[LaneKey]:
    """Step through the index and return the lane of every pending row of a place."""
    sql = db.dialect.sql

    def step(cursor: Any) -> list[LaneKey]:
        found: list[LaneKey] = []
        tenant_id, priority = "", -1
        while True:
            cursor.execute(sql(statements.NEXT_PRIORITY), (*place, tenant_id, priority))
            row = cursor.fetchone()
            if row is None:
                cursor.execute(sql(statements.NEXT_TENANT), (*place, tenant_id))
                row = cursor.fetchone()
            if row is None:
                return found
            tenant_id, priority = row[0], int(row[1])
            found.append(LaneKey(*place, tenant_id, priority))

    return db.run(step, line=line, read_only=True)


def drop_idle_lanes(db: Database, place: Place, *, line: Line) -> int:
    """Drop the lanes that stayed empty for a minute; returns how many.

    The lane is locked first (skipped when another holds it), then its rows are looked for: who
    makes a row pending looks at the lane after its commit, and waits for this lock.
    """
    sql = db.dialect.sql

    def idle(cursor: Any) -> list[tuple[str, int]]:
        cursor.execute(sql(statements.LANES_IDLE), (*place, -IDLE_SECONDS))
        return [(row[0], int(row[1])) for row in cursor.fetchall()]

    def drop(lane: tuple[str, int], cursor: Any) -> int:
        key = (*place, *lane)
        cursor.execute(sql(statements.LOCK_IDLE_LANE), (*key, -IDLE_SECONDS))
        if cursor.fetchone() is None:
            return 0
        cursor.execute("SELECT " + sql(statements.HAS_PENDING), (*key, db.dialect.from_time(EPOCH)))
        if cursor.fetchone()[0]:
            return 0
        cursor.execute(sql(statements.DROP_LANE), key)
        return int(cursor.rowcount)

    candidates = db.run(idle, line=line, read_only=True)
    return sum(db.run(partial(drop, lane), line=line) for lane in candidates)
