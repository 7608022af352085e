"""Reading on through an index: from a bound that trails the clock, in pages, past rows that stay.

A scan reads again only what could have changed; once a minute it reads everything.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shared.core.clock import monotonic
from shared.outbox.context import OutboxContext
from shared.outbox.db import Database, Line
from shared.outbox.dialect import Dialect
from shared.outbox.lanes import LaneKey
from shared.outbox.window import EPOCH, moment

#: A bound trails the database's clock by this, for rows whose transaction commits late.
TRAIL = dt.timedelta(seconds=5)
#: Seconds that one scan may take before the others have their turn.
SCAN_SECONDS = 5.0
_STEP = dt.timedelta(microseconds=1)


class Bound:
    """From where one scan reads. What lies below has been read, and nothing is ever put there."""

    def __init__(self, full_seconds: float) -> None:
        self._full_seconds = full_seconds
        self._at = EPOCH
        self._full_at = float("-inf")

    def start(self) -> dt.datetime:
        """Return the bound for a scan that begins now."""
        now = monotonic()
        if now - self._full_at >= self._full_seconds:
            self._full_at = now
            self._at = EPOCH
        return self._at

    def reached(self, clock: dt.datetime, oldest: dt.datetime | None = None) -> None:
        """Note that all up to `clock` was read; rows that stayed begin at `oldest`."""
        trailing = clock - TRAIL
        self._at = max(self._at, trailing if oldest is None else min(oldest, trailing))

    def stopped(self, at: dt.datetime) -> None:
        """Note that a scan ran out of time here."""
        self._at = max(self._at, at)


@dataclass(frozen=True, slots=True)
class Expired:
    """A row of a dispatch whose time is over."""

    id: int
    dispatch_id: str
    kind: str
    lane: LaneKey
    order_at: dt.datetime
    lease_until: dt.datetime

    @classmethod
    def of(cls, row: Sequence[Any], dialect: Dialect) -> Expired:
        """Return a row of `statements.scan.DISPATCHED` and its like."""
        return cls(
            id=int(row[0]),
            lease_until=moment(dialect, row[1]),
            dispatch_id=row[2] or "",
            kind=row[3],
            lane=LaneKey(row[4], row[5], row[6], int(row[7])),
            order_at=moment(dialect, row[8]),
        )


def read_clock(db: Database, line: Line) -> dt.datetime:
    """Return the database's clock."""
    text = "SELECT " + db.dialect.tokens["now"]

    def read(cursor: Any) -> dt.datetime:
        cursor.execute(text)
        return moment(db.dialect, cursor.fetchone()[0])

    return db.run(read, line=line, read_only=True)


def walk(
    context: OutboxContext, line: Line, select: str, tie: str, start: dt.datetime
) -> Iterator[list[Sequence[Any]]]:
    """Yield pages of rows (id, lease_until, ...) in that order, without locks.

    Each row is read once, whether it stays where it is or not: rows that cannot be dealt with do
    not keep those behind them waiting. `tie` reads the rest of the rows that share one moment,
    since one statement gives a whole page the same.
    """
    db, limit = context.db, context.settings.scan_page
    dialect = db.dialect

    def read(text: str, *values: Any) -> list[Sequence[Any]]:
        def fetch(cursor: Any) -> list[Sequence[Any]]:
            cursor.execute(dialect.sql(text), (*values, limit))
            return list(cursor.fetchall())

        return db.run(fetch, line=line, read_only=True)

    while True:
        page = read(select, dialect.from_time(start))
        if page:
            yield page
        if len(page) < limit:
            return
        last = page[-1]
        while len(page) == limit:
            page = read(tie, last[1], last[0])
            if page:
                yield page
                last = page[-1]
        start = moment(dialect, last[1]) + _STEP


def uptime_seconds(db: Database, line: Line) -> float:
    """Return for how long the database's server has been up; SQLite has none and is never away."""
    if db.dialect.name == "sqlite":
        return float("inf")

    def read(cursor: Any) -> float:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Uptime'")
        return float(cursor.fetchone()[1])

    return db.run(read, line=line, read_only=True)
