"""The window: how much work of one queue may be in Redis, and how much is there.

Size comes from the live consumers and their execution times; fullness is the larger of the list's
length and the rows dispatching or dispatched. The database is the backlog.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, NamedTuple

from shared.core.clock import monotonic
from shared.outbox.context import OutboxContext
from shared.outbox.db import Line
from shared.outbox.dialect import Dialect
from shared.outbox.messages import queue_key, split_queue_key
from shared.outbox.nodes import Node
from shared.outbox.settings import OutboxSettings
from shared.outbox.statements import fill as statements
from shared.outbox.states import State

#: Mean execution seconds of a queue that has not run anything yet.
UNKNOWN_MEAN_SECONDS = 0.05
#: The rows are counted again after this long ...
COUNT_SECONDS = 0.5
#: ... and never for more than one part in so many of the filler's time.
COUNT_SHARE = 20
#: Rows of a commit that took this long are still counted.
_LATE = dt.timedelta(seconds=1)
#: Before every task.
EPOCH = dt.datetime(1970, 1, 1)


def moment(dialect: Dialect, value: Any) -> dt.datetime:
    """Return a driver's value of a time column that is not NULL."""
    found = dialect.to_time(value)
    assert found is not None
    return found


class Place(NamedTuple):
    """A queue in a region ('' is the base): what a window, a list and a filler belong to."""

    queue: str
    region: str

    @property
    def name(self) -> str:
        """The queue's name in Redis."""
        return queue_key(self.queue, self.region)

    @classmethod
    def of(cls, name: str) -> Place:
        """Return the place of a name in Redis."""
        return cls(*split_queue_key(name))


def window_size(consumers: Iterable[Node], name: str, settings: OutboxSettings) -> int:
    """Return how many tasks of this queue may be in Redis: 0 where nobody consumes it.

    Each consumer adds threads x window seconds / mean execution time, between its two bounds per
    thread.
    """
    size = 0
    for node in consumers:
        mean = node.mean_seconds.get(name) or UNKNOWN_MEAN_SECONDS
        wanted = int(node.threads * settings.window_seconds / mean)
        size += min(
            max(wanted, settings.window_min_per_thread * node.threads),
            settings.window_max_per_thread * node.threads,
        )
    return size


class Fullness:
    """How full one window is. The rows are counted seldom, the list's length is known at each push.

    Between two counts, the rows that are not in the list (fetched and not claimed, claimed here
    and not pushed, lost by Redis) are taken to stay as many as they were.
    """

    def __init__(self, context: OutboxContext, place: Place) -> None:
        self._context = context
        self._place = place
        self._unlisted = self._listed = 0
        self._counted_at = float("-inf")
        self._cost_seconds = 0.0
        # Rows that left the window stay in the index while somebody's old snapshot may read them:
        # a count begins at the earliest row that was in at the last one, or has entered since.
        self._floor = EPOCH

    def read(self, listed: int, line: Line | None = None) -> int:
        """Return the fullness where the list holds `listed` messages now."""
        age = monotonic() - self._counted_at
        # A list that has become empty may have been lost: what the rows say is what counts then.
        has_emptied, self._listed = listed == 0 < self._listed, listed
        if has_emptied or age >= max(COUNT_SECONDS, COUNT_SHARE * self._cost_seconds):
            self._count(listed, line)
        return listed + self._unlisted

    def claimed(self, due_at: dt.datetime) -> None:
        """Note the earliest due time of rows that have just entered the window."""
        self._floor = min(self._floor, due_at)

    def forget(self) -> None:
        """Count from the start next time: another process may have filled meanwhile."""
        self._counted_at = float("-inf")
        self._cost_seconds = 0.0
        self._floor = EPOCH

    def _count(self, listed: int, line: Line | None) -> None:
        dialect = self._context.db.dialect
        sql = dialect.sql(statements.COUNT_WINDOW)
        started = monotonic()

        def count(cursor: Any) -> tuple[int, dt.datetime]:
            rows = 0
            starts: list[dt.datetime] = []
            for state in (State.DISPATCHING, State.DISPATCHED):
                cursor.execute(sql, (*self._place, state.value, dialect.from_time(self._floor)))
                in_state, earliest, now = cursor.fetchone()
                rows += int(in_state)
                starts.append(dialect.to_time(earliest) or moment(dialect, now) - _LATE)
            return rows, min(starts)

        rows, self._floor = self._context.db.run(count, line=line, read_only=True)
        self._unlisted = max(0, rows - listed)
        self._counted_at = monotonic()
        self._cost_seconds = self._counted_at - started


class Places:
    """The places that exist: consumed by a live process, of a kind known here, or with rows.

    Rows are looked for at most every `max_age_seconds`, by one step through the index for each
    place. For one thread.
    """

    def __init__(self, context: OutboxContext, *, max_age_seconds: float | None = None) -> None:
        self._context = context
        self._max_age_seconds = (
            context.settings.scan_seconds if max_age_seconds is None else max_age_seconds
        )
        self._read_at = float("-inf")
        self._with_rows: list[Place] = []

    def get(self, nodes: Iterable[Node], line: Line | None = None) -> list[Place]:
        """Return the places in order. Raises UnavailableError as the database does."""
        now = monotonic()
        if now - self._read_at >= self._max_age_seconds:
            self._with_rows = places_with_rows(self._context, line=line)
            self._read_at = now
        found = set(self._with_rows)
        found.update(Place.of(name) for node in nodes for name in node.queues)
        found.update(Place(queue, "") for queue in self._context.kinds.queues())
        return sorted(found)


def places_with_rows(context: OutboxContext, *, line: Line | None = None) -> list[Place]:
    """Step through the index and return every place that has a row, whatever its state."""
    sql = context.db.dialect.sql

    def step(cursor: Any) -> list[Place]:
        found: list[Place] = []
        cursor.execute(sql(statements.NEXT_QUEUE), ("",))
        row = cursor.fetchone()
        while row is not None:
            place = Place(row[0], row[1])
            found.append(place)
            cursor.execute(sql(statements.NEXT_REGION), place)
            row = cursor.fetchone()
            if row is None:
                cursor.execute(sql(statements.NEXT_QUEUE), (place.queue,))
                row = cursor.fetchone()
        return found

    return context.db.run(step, line=line, read_only=True)
