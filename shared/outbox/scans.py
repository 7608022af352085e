"""The scans of rows that wait: what is due becomes pending, and what was never dispatched.

Pages of short transactions, safe on many nodes at once: a row that another has locked is left to
it, and every change names the state that it expects.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from shared.core.clock import Deadline
from shared.core.failpoints import failpoint
from shared.outbox.context import OutboxContext
from shared.outbox.db import Line
from shared.outbox.lanes import LaneKey, lower_lanes
from shared.outbox.pages import telling_kinds
from shared.outbox.records import add_events
from shared.outbox.signals import Redelivered
from shared.outbox.statements import scan as statements
from shared.outbox.states import State
from shared.outbox.walk import SCAN_SECONDS, Bound, Expired, read_clock
from shared.outbox.window import Place, moment


class Scans:
    """The scans that need no Redis. For one thread; raises UnavailableError as it comes."""

    def __init__(self, context: OutboxContext, line: Line) -> None:
        self._context = context
        self._line = line
        self._due_bounds: dict[Place, Bound] = {}
        self._dispatch_bound = Bound(context.settings.full_scan_seconds)

    # -- scheduled -------------------------------------------------------------------------

    def due(self, places: Sequence[Place]) -> int:
        """Make scheduled rows pending whose time has come; returns how many."""
        clock = read_clock(self._context.db, self._line)
        deadline = Deadline(SCAN_SECONDS)
        count = 0
        for place in places:
            if place not in self._due_bounds:
                self._due_bounds[place] = Bound(self._context.settings.full_scan_seconds)
            count += self._due(place, self._due_bounds[place], clock, deadline)
        self._tell("due", count)
        return count

    def _due(self, place: Place, bound: Bound, clock: dt.datetime, deadline: Deadline) -> int:
        limit = self._context.settings.scan_page
        start, count = bound.start(), 0
        while True:
            page = self._context.db.run(
                partial(self._make_pending, place=place, start=start, limit=limit),
                line=self._line,
            )
            failpoint("scan.due")
            lower_lanes(
                self._context.db,
                [(LaneKey(*place, row[2], int(row[3])), self._moment(row[4])) for row in page],
                line=self._line,
            )
            count += len(page)
            if len(page) < limit:
                bound.reached(clock)
                return count
            start = self._moment(page[-1][5])
            if deadline.expired():
                bound.stopped(start)
                return count

    def _make_pending(
        self, cursor: Any, place: Place, start: dt.datetime, limit: int
    ) -> list[Sequence[Any]]:
        dialect = self._context.db.dialect
        cursor.execute(dialect.sql(statements.DUE), (*place, dialect.from_time(start), limit))
        page = list(cursor.fetchall())
        if page:
            ids = sorted(int(row[0]) for row in page)
            cursor.execute(dialect.sql_ids(statements.MAKE_PENDING, ids=len(ids)), ids)
            telling = telling_kinds(self._context, (row[1] for row in page))
            moved = [int(row[0]) for row in page if row[1] in telling]
            _add_pending(self._context, cursor, moved, State.SCHEDULED)
        return page

    # -- dispatching -----------------------------------------------------------------------

    def dispatch_expired(self) -> int:
        """Make rows pending whose dispatch did not get through in time; returns how many."""
        limit = self._context.settings.scan_page
        clock = read_clock(self._context.db, self._line)
        deadline = Deadline(SCAN_SECONDS)
        bound = self._dispatch_bound
        start, count = bound.start(), 0
        while True:
            page = self._context.db.run(
                partial(self._take_back_expired, start=start, limit=limit),
                line=self._line,
            )
            failpoint("scan.dispatch_expired")
            lower_lanes(
                self._context.db, [(row.lane, row.order_at) for row in page], line=self._line
            )
            count += len(page)
            if len(page) < limit:
                bound.reached(clock)
                break
            start = page[-1].lease_until
            if deadline.expired():
                bound.stopped(start)
                break
        self._tell("dispatch_expired", count)
        return count

    def _take_back_expired(self, cursor: Any, start: dt.datetime, limit: int) -> list[Expired]:
        dialect = self._context.db.dialect
        cursor.execute(dialect.sql(statements.DISPATCH_EXPIRED), (dialect.from_time(start), limit))
        page = [Expired.of(row, dialect) for row in cursor.fetchall()]
        take_back(self._context, cursor, page, State.DISPATCHING)
        return page

    # -- shared ----------------------------------------------------------------------------

    def _moment(self, value: Any) -> dt.datetime:
        return moment(self._context.db.dialect, value)

    def _tell(self, reason: str, count: int) -> None:
        if count:
            self._context.signals.emit(Redelivered(reason, count))


def take_back(
    context: OutboxContext, cursor: Any, page: Sequence[Expired], source: State
) -> list[int]:
    """Make these rows pending that are still in this very dispatch; returns which were."""
    if not page:
        return []
    dialect = context.db.dialect
    in_order = sorted(page, key=lambda row: row.id)
    dispatches = [row.dispatch_id for row in in_order]
    # A row that a long transaction holds must not keep the others of its page waiting.
    cursor.execute(
        dialect.sql_ids(statements.LOCK_IN_DISPATCH, ids=len(in_order), dispatches=len(dispatches)),
        [*(row.id for row in in_order), source.value, *dispatches],
    )
    ids = [int(row[0]) for row in cursor.fetchall()]
    if not ids:
        return []
    cursor.execute(
        dialect.sql_ids(statements.TAKE_BACK, ids=len(ids), dispatches=len(dispatches)),
        [*ids, source.value, *dispatches],
    )
    telling = telling_kinds(context, (row.kind for row in page))
    heard = {row.id for row in page if row.kind in telling}
    _add_pending(context, cursor, [task_id for task_id in ids if task_id in heard], source)
    return ids


def _add_pending(context: OutboxContext, cursor: Any, ids: Sequence[int], source: State) -> None:
    data = json.dumps({"from": source.value, "to": State.PENDING.value})
    add_events(
        cursor, context.db.dialect, [(task_id, State.PENDING.value, data) for task_id in ids]
    )
