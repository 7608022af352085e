"""The window: how much work of one queue may be in Redis, and how much is there.

Size comes from the live consumers and their execution times; fullness is the larger of the list's length
and the rows dispatching or dispatched. The database is the backlog.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, NamedTuple

from shared.core.clock import monotonic
from shared.outbox.context import OutboxContext
from shared.outbox.db import Line
from shared.outbox.messages import queue_key, split_queue_key
from shared.outbox.nodes import Node
from shared.outbox.settings import OutboxSettings
from shared.outbox.states import State
from shared.outbox.statements import fill as statements

#: Mean execution seconds of a queue that has not run anything yet.
UNKNOWN_MEAN_SECONDS = 0.05
#: The rows are counted again after this long ...
COUNT_SECONDS = 0.5
#: ... and never for more than one part in so many of the filler's time.
COUNT_SHARE = 20
#: Rows of a commit that took this long are still counted.
_LATE = dt.timedelta(seconds=1)
#: Before every task.
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - naive UTC, as the tables hold it


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
        self._unlisted = 0
        self._counted_at = float("-inf")
        self._cost_seconds = 0.0
        # Rows that left the window stay in the index while somebody's old snapshot may read them:
        # a count begins at the earliest row that was in at the last one, or has entered since.
        self._floor = EPOCH

    def read(self, listed: int, line: Line | None = None) -> int:
        """Return the fullness where the list holds `listed` messages now."""
        age = monotonic() - self._counted_at
        # An empty list may be a flushed one: what the rows say is what counts then.
        if (listed == 0 or age >= COUNT_SECONDS) and age >= COUNT_SHARE * self._cost_seconds:
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
            rows, starts = 0, []
            for state in (State.DISPATCHING, State.DISPATCHED):
                cursor.execute(
                    sql, (*self._place, state.value, dialect.from_time(self._floor))
                )
                in_state, earliest, now = cursor.fetchone()
                rows += int(in_state)
                starts.append(dialect.to_time(earliest) or dialect.to_time(now) - _LATE)
            return rows, min(starts)

        rows, self._floor = self._context.db.run(count, line=line)
        self._unlisted = max(0, rows - listed)
        self._counted_at = monotonic()
        self._cost_seconds = self._counted_at - started
