"""One page of the filler: claimed in one transaction, pushed in one call, marked in one statement.

Between the three steps only the dispatch lease remembers it; the scan brings back what fell there.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis
import structlog

from shared.core.clock import monotonic
from shared.core.errors import BloxError
from shared.core.failpoints import failpoint
from shared.core.ids import new_id
from shared.outbox.backlog import Backlog, LaneMemory
from shared.outbox.context import OutboxContext
from shared.outbox.db import Line
from shared.outbox.fairness import Ring
from shared.outbox.records import add_events
from shared.outbox.signals import DispatchFailed
from shared.outbox.statements import fill as statements
from shared.outbox.window import Place, moment

#: Seconds that rows wait whose push Redis refused.
REFUSED_SECONDS = 1.0
#: Pages kept for another push after one whose outcome is unknown.
_MAX_KEPT = 20

_log = structlog.get_logger("outbox.filler")


@dataclass(slots=True)
class Page:
    """Rows that are `dispatching` now: (task id, dispatch id) in the order of fairness."""

    place: Place
    prefix: str
    expires_at: float
    rows: list[tuple[int, str]]
    earliest_due_at: dt.datetime
    #: Tasks whose kind records every transition.
    eventful: list[int]
    pushed_at: float = 0.0

    @property
    def ids(self) -> list[int]:
        """Return the task ids, ascending: the order in which rows are locked everywhere."""
        return sorted(task_id for task_id, _ in self.rows)


@dataclass(slots=True)
class _Draft:
    """What one try of the claiming transaction found; nothing is remembered before its commit."""

    ring: Ring
    found: list[Sequence[Any]] = field(default_factory=list)
    #: For each lane that was taken from: the last `order_at`, and the ids taken of that moment.
    ends: dict[int, tuple[LaneMemory, Any, set[int]]] = field(default_factory=dict)
    emptied: dict[int, LaneMemory] = field(default_factory=dict)


class Pages:
    """Claims, pushes and marks on one connection. For the thread of the filler."""

    def __init__(self, context: OutboxContext, line: Line) -> None:
        self._context = context
        self._line = line
        self._unsure: deque[Page] = deque()
        #: Pages that Redis has, oldest first.
        self._pushed: deque[Page] = deque()

    def claim(self, backlog: Backlog, room: int) -> Page | None:
        """Claim up to `room` rows in the order of fairness; None when there were none to be had."""
        prefix = new_id()[:16]
        expires_at = monotonic() + self._context.settings.dispatch_lease_seconds
        draft = self._context.db.run(
            lambda cursor: self._take(cursor, backlog, room, prefix), line=self._line
        )
        dialect = self._context.db.dialect
        backlog.ring = draft.ring
        for lane, last, _ in draft.ends.values():
            lane.claimed(moment(dialect, last))
        for lane in draft.emptied.values():
            lane.has_rows = False
        if not draft.found:
            return None
        failpoint("fill.claimed")
        return Page(
            place=backlog.place,
            prefix=prefix,
            expires_at=expires_at,
            rows=[(int(row[0]), f"{prefix}{row[0]:016x}") for row in draft.found],
            earliest_due_at=moment(dialect, min(row[3] for row in draft.found)),
            eventful=self._eventful(draft.found),
        )

    def push(self, page: Page) -> int | None:
        """Push a page; returns the list's length, None when Redis may not have it.

        It is to be marked later. Refused rows are put off. A push whose outcome is unknown is tried
        again: the second message of one dispatch is dropped by whoever fetches it.
        """
        if monotonic() >= page.expires_at - self._context.settings.dispatch_margin_seconds:
            return None
        name = page.place.name
        try:
            listed = self._context.scripts.push(name, page.rows)
        except redis.ResponseError as error:
            _log.warning("fill_refused", queue=name, count=len(page.rows), error=str(error))
            self._context.signals.emit(DispatchFailed(len(page.rows), unknown=False))
            self._mark(page, statements.MARK_REFUSED, REFUSED_SECONDS, "scheduled")
            return None
        except redis.RedisError as error:
            _log.warning("fill_unknown", queue=name, count=len(page.rows), error=str(error))
            self._context.signals.emit(DispatchFailed(len(page.rows), unknown=True))
            if len(self._unsure) < _MAX_KEPT:
                self._unsure.append(page)
            return None
        failpoint("fill.pushed")
        page.pushed_at = monotonic()
        self._pushed.append(page)
        return listed

    def oldest_push(self) -> float:
        """Return the local time of the oldest push without a mark, infinity without one."""
        return self._pushed[0].pushed_at if self._pushed else math.inf

    def mark(self, *, older_than_seconds: float = 0.0) -> None:
        """Mark what was pushed so long ago, or at once what somebody follows by its events.

        A row that a worker has taken meanwhile costs no mark; so a busy queue's pages are marked
        late. The scan looks for their messages as soon as if they had been marked at once.
        """
        now = monotonic()
        grace = self._context.settings.dispatched_grace_seconds
        for _ in range(len(self._pushed)):
            page = self._pushed.popleft()
            age = now - page.pushed_at
            if age >= older_than_seconds or page.eventful:
                self._mark(page, statements.MARK_DISPATCHED, max(0.0, grace - age), "dispatched")
            else:
                self._pushed.append(page)

    def push_again(self) -> None:
        """Push what may not have arrived, as long as its dispatch lease allows."""
        for _ in range(len(self._unsure)):
            if self.push(self._unsure.popleft()) is None:
                return

    def _take(self, cursor: Any, backlog: Backlog, room: int, prefix: str) -> _Draft:
        dialect = self._context.db.dialect
        draft = _Draft(backlog.ring.copy())
        while len(draft.found) < room and (turn := draft.ring.turn()) is not None:
            tenant_id, allowance = turn
            wanted = min(allowance, room - len(draft.found))
            count = self._take_of(cursor, backlog, tenant_id, wanted, draft)
            draft.ring.took(count, is_empty=count < wanted)
        if not draft.found:
            return draft
        ids = sorted(int(row[0]) for row in draft.found)
        cursor.execute(
            dialect.sql_ids(statements.TAKE, ids=len(ids)),
            [prefix, self._context.settings.dispatch_lease_seconds, *ids],
        )
        self._add_events(cursor, self._eventful(draft.found), "dispatching", "pending")
        return draft

    def _take_of(
        self, cursor: Any, backlog: Backlog, tenant_id: str, wanted: int, draft: _Draft
    ) -> int:
        """Lock up to `wanted` rows of one tenant, the urgent lanes first; returns how many."""
        dialect = self._context.db.dialect
        claim = dialect.sql(statements.CLAIM)
        count = 0
        for lane in backlog.lanes_of(tenant_id):
            if id(lane) in draft.emptied:
                continue
            asked = wanted - count
            _, last, taken = draft.ends.get(id(lane), (lane, dialect.from_time(lane.bound), set()))
            # What this page has taken already is not updated yet, so it is read once more.
            limit = asked + len(taken)
            cursor.execute(claim, (*backlog.place, tenant_id, lane.priority, last, limit))
            rows = [row for row in cursor.fetchall() if row[0] not in taken]
            draft.found.extend(rows)
            count += len(rows)
            if rows:
                reached = rows[-1][2]
                same = {row[0] for row in rows if row[2] == reached}
                draft.ends[id(lane)] = (lane, reached, same | taken if reached == last else same)
            if len(rows) < asked:
                draft.emptied[id(lane)] = lane
            else:
                break
        return count

    def _eventful(self, rows: Sequence[Sequence[Any]]) -> list[int]:
        telling = telling_kinds(self._context, (row[1] for row in rows))
        return [int(row[0]) for row in rows if row[1] in telling] if telling else []

    def _mark(self, page: Page, text: str, seconds: float, state: str) -> None:
        dialect = self._context.db.dialect
        ids = page.ids

        def mark(cursor: Any) -> None:
            telling: list[int] = []
            if page.eventful:
                heard = set(page.eventful)
                cursor.execute(
                    dialect.sql_ids(statements.LOCK_DISPATCHING, ids=len(ids)), [*ids, page.prefix]
                )
                telling = [int(row[0]) for row in cursor.fetchall() if row[0] in heard]
            cursor.execute(dialect.sql_ids(text, ids=len(ids)), [seconds, *ids, page.prefix])
            self._add_events(cursor, telling, state, "dispatching")

        try:
            self._context.db.run(mark, line=self._line)
        except BloxError as error:
            # They stay `dispatching`: a worker may take them, or the scan brings them back.
            _log.warning("fill_mark_failed", count=len(ids), error=str(error))

    def _add_events(self, cursor: Any, ids: Sequence[int], state: str, source: str) -> None:
        data = json.dumps({"from": source, "to": state})
        add_events(cursor, self._context.db.dialect, [(task_id, state, data) for task_id in ids])


def telling_kinds(context: OutboxContext, names: Iterable[str]) -> set[str]:
    """Return which of these kinds record every transition, as far as they are known here."""
    found = ((name, context.kinds.find(name)) for name in set(names))
    return {name for name, kind in found if kind is not None and kind.events}
