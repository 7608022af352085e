"""The scans of the database: what is due becomes pending, what lost its lease comes back.

Pages of short transactions, safe on many nodes at once: a row that another has locked is left to
it, and every change names the state that it expects.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog

from shared.core.clock import Deadline
from shared.core.errors import UnavailableError
from shared.core.failpoints import failpoint
from shared.outbox import rows
from shared.outbox.context import OutboxContext
from shared.outbox.db import Line
from shared.outbox.ends import End, Ends
from shared.outbox.lanes import LaneKey, lower_lanes
from shared.outbox.pages import telling_kinds
from shared.outbox.records import add_attempt, add_event, add_events
from shared.outbox.rows import TaskRow
from shared.outbox.signals import LeasesRecovered, Redelivered
from shared.outbox.statements import scan as statements
from shared.outbox.states import State
from shared.outbox.verdicts import REQUEST_CODES
from shared.outbox.walk import Bound, Expired, read_clock, walk
from shared.outbox.window import Place, moment

#: Leases that a task may lose in a row where this process does not know its kind.
DEFAULT_RECOVERIES = 5
#: All lost leases of one life may be this many times those in a row.
CRASHES_PER_RECOVERY = 4
#: Seconds that one scan may take before the others have their turn.
SCAN_SECONDS = 5.0

_log = structlog.get_logger("outbox.scans")


class Scans:
    """The scans that need no Redis. For one thread; raises UnavailableError as it comes."""

    def __init__(self, context: OutboxContext, ends: Ends, line: Line) -> None:
        self._context = context
        self._ends = ends
        self._line = line
        self._due_bounds: dict[Place, Bound] = {}
        full = context.settings.full_scan_seconds
        self._dispatch_bound = Bound(full)
        self._lease_bound = Bound(full)

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

    # -- running ---------------------------------------------------------------------------

    def leases(self) -> tuple[int, int]:
        """Bring back running rows that nobody owns any more.

        They are scheduled again a while later; those that lost too many leases fail as `crashed`,
        those whose cancellation was acknowledged are cancelled, one transaction each. Returns how
        many came back and how many ended.
        """
        clock = read_clock(self._context.db, self._line)
        deadline = Deadline(SCAN_SECONDS)
        recovered = failed = cancelled = 0
        oldest: dt.datetime | None = None
        for page in walk(
            self._context,
            self._line,
            statements.LEASE_EXPIRED,
            statements.LEASE_EXPIRED_TIE,
            self._lease_bound.start(),
        ):
            done, over = self._recover([int(row[0]) for row in page])
            recovered += len(done)
            for row in over:
                state = self._end(row)
                failed += state is State.FAILED
                cancelled += state is State.CANCELLED
                if state is not None:
                    done.add(row.id)
            stayed = (self._moment(row[1]) for row in page if row[0] not in done)
            oldest = min(filter(None, (oldest, next(stayed, None))), default=None)
            if deadline.expired():
                self._lease_bound.stopped(oldest or self._moment(page[-1][1]))
                break
        else:
            self._lease_bound.reached(clock, oldest)
        if recovered or failed:
            self._context.signals.emit(LeasesRecovered(recovered, failed))
            _log.warning("leases_recovered", recovered=recovered, failed=failed)
        return recovered, failed + cancelled

    def _recover(self, ids: Sequence[int]) -> tuple[set[int], list[TaskRow]]:
        """Schedule again what may be; returns their ids, and the rows that must end instead."""
        dialect, settings = self._context.db.dialect, self._context.settings

        def work(cursor: Any) -> tuple[set[int], list[TaskRow]]:
            # A row that is locked is just being settled by its owner, or by another scan.
            text = dialect.sql_ids(statements.LOCK_EXPIRED, ids=len(ids))
            cursor.execute(text, sorted(ids))
            free = [int(row[0]) for row in cursor.fetchall()]
            done: set[int] = set()
            over: list[TaskRow] = []
            for row in rows.lock(cursor, dialect, free).values():
                if row.cancel_requested or self._is_spent(row):
                    over.append(row)
                    continue
                wait = random.uniform(settings.recovery_min_seconds, settings.recovery_max_seconds)
                cursor.execute(
                    dialect.sql(statements.RECOVER), (wait, row.id, row.owner, row.fence)
                )
                if cursor.rowcount != 1:
                    continue
                done.add(row.id)
                add_attempt(
                    cursor,
                    dialect,
                    row,
                    attempt=row.attempt,
                    outcome="lease_lost",
                    code="lease_lost",
                    detail=None,
                )
                data = {
                    "from": State.RUNNING.value,
                    "to": State.SCHEDULED.value,
                    "owner": row.owner,
                    "fence": row.fence,
                    "recoveries": row.recoveries + 1,
                }
                add_event(cursor, dialect, row.id, "lease_lost", data)
            return done, over

        answer = self._context.db.run(work, line=self._line)
        failpoint("scan.leases")
        return answer

    def _is_spent(self, row: TaskRow) -> bool:
        kind = self._context.kinds.find(row.kind)
        allowed = self._context.settings.max_recoveries or (
            DEFAULT_RECOVERIES if kind is None else kind.max_recoveries
        )
        return row.recoveries + 1 > allowed or row.crashes + 1 >= CRASHES_PER_RECOVERY * max(
            1, allowed
        )

    def _end(self, expected: TaskRow) -> State | None:
        def judge(row: TaskRow) -> End | None:
            is_same = (row.owner, row.fence) == (expected.owner, expected.fence)
            if row.state is not State.RUNNING or row.is_leased or not is_same:
                return None
            if row.cancel_requested:
                is_named = row.error_code in REQUEST_CODES
                return End(
                    state=State.CANCELLED,
                    code=str(row.error_code) if is_named else "cancelled",
                    detail=(row.error_detail or "") if is_named else "",
                    crashed=True,
                )
            if not self._is_spent(row):
                return None
            return End(
                state=State.FAILED,
                code="crashed",
                detail=f"lost its lease {row.crashes + 1} times, {row.recoveries + 1} in a row",
                outcome="crashed",
                crashed=True,
            )

        ended: list[State] = []

        def noting(row: TaskRow) -> End | None:
            end = judge(row)
            ended[:] = [end.state] if end is not None else []
            return end

        try:
            done = self._ends.end(expected.id, noting)
        except UnavailableError as error:
            # Its domain rows may be locked for long; its neighbours do not wait for them.
            _log.warning("end_failed", task_id=expected.id, error=str(error))
            read_clock(self._context.db, self._line)
            return None
        except Exception:
            _log.exception("end_failed", task_id=expected.id)
            return None
        return ended[0] if done is not None and ended else None

    # -- shared ----------------------------------------------------------------------------

    def _moment(self, value: Any) -> dt.datetime:
        return moment(self._context.db.dialect, value)

    def _tell(self, reason: str, count: int) -> None:
        if count:
            self._context.signals.emit(Redelivered(reason, count))


def take_back(context: OutboxContext, cursor: Any, page: Sequence[Expired], source: State) -> int:
    """Make these rows pending that are still in this very dispatch; returns how many were."""
    if not page:
        return 0
    dialect = context.db.dialect
    in_order = sorted(page, key=lambda row: row.id)
    counts = {"ids": len(in_order), "dispatches": len(in_order)}
    values = [
        *(row.id for row in in_order),
        source.value,
        *(row.dispatch_id for row in in_order),
    ]
    telling = telling_kinds(context, (row.kind for row in page))
    moved: list[int] = []
    if telling:
        heard = {row.id for row in page if row.kind in telling}
        cursor.execute(dialect.sql_ids(statements.LOCK_IN_DISPATCH, **counts), values)
        moved = [int(row[0]) for row in cursor.fetchall() if row[0] in heard]
    cursor.execute(dialect.sql_ids(statements.TAKE_BACK, **counts), values)
    count = int(cursor.rowcount)
    _add_pending(context, cursor, moved, source)
    return count


def _add_pending(context: OutboxContext, cursor: Any, ids: Sequence[int], source: State) -> None:
    data = json.dumps({"from": source.value, "to": State.PENDING.value})
    add_events(
        cursor, context.db.dialect, [(task_id, State.PENDING.value, data) for task_id in ids]
    )
