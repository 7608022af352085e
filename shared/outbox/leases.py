"""The scan of execution leases: tasks whose worker died, froze or lost the database come back.

Safe on many nodes at once: a row that another has locked is left to it, and every change names
owner and fence.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from typing import Any

import structlog

from shared.core.clock import Deadline
from shared.core.errors import UnavailableError
from shared.core.failpoints import failpoint
from shared.outbox import rows
from shared.outbox.context import OutboxContext
from shared.outbox.db import Line
from shared.outbox.ends import End, Ends
from shared.outbox.records import add_attempt, add_event
from shared.outbox.rows import TaskRow
from shared.outbox.signals import LeasesRecovered
from shared.outbox.statements import scan as statements
from shared.outbox.states import State
from shared.outbox.verdicts import REQUEST_CODES
from shared.outbox.walk import SCAN_SECONDS, Bound, read_clock, walk
from shared.outbox.window import moment

#: Leases that a task may lose in a row where this process does not know its kind.
DEFAULT_RECOVERIES = 5
#: All lost leases of one life may be this many times those in a row.
CRASHES_PER_RECOVERY = 4
#: A row whose domain rows stay locked is left to the next scan after so many waits.
END_TRIES = 2

_log = structlog.get_logger("outbox.scans")


class Leases:
    """For one thread; raises UnavailableError as the database does."""

    def __init__(self, context: OutboxContext, ends: Ends, line: Line) -> None:
        self._context = context
        self._ends = ends
        self._line = line
        self._bound = Bound(context.settings.full_scan_seconds)
        #: Where a scan that ran out of time goes on, and the oldest row that it left behind.
        self._resume_at: dt.datetime | None = None
        self._oldest: dt.datetime | None = None

    def run_once(self) -> tuple[int, int]:
        """Bring back running rows that nobody owns any more.

        They are scheduled again a while later; those that lost too many leases fail as `crashed`,
        those whose cancellation was acknowledged are cancelled, one transaction each. Returns how
        many came back and how many ended.
        """
        clock = read_clock(self._context.db, self._line)
        deadline = Deadline(SCAN_SECONDS)
        recovered, ended = 0, {State.FAILED: 0, State.CANCELLED: 0}
        for page in walk(
            self._context,
            self._line,
            statements.LEASE_EXPIRED,
            statements.LEASE_EXPIRED_TIE,
            self._resume_at or self._bound.start(),
        ):
            done, over = self._recover([int(row[0]) for row in page])
            recovered += len(done)
            # Those whose domain rows are locked for long must not always be the first.
            random.shuffle(over)
            for row in over:
                state = None if deadline.expired() else self._end(row)
                if state is not None:
                    ended[state] += 1
                    done.add(row.id)
            stayed = next((row[1] for row in page if row[0] not in done), None)
            if stayed is not None and self._oldest is None:
                self._oldest = self._moment(stayed)
            if deadline.expired():
                self._resume_at = self._moment(page[-1][1])
                break
        else:
            self._bound.reached(clock, self._oldest)
            self._resume_at = self._oldest = None
        failed = ended[State.FAILED]
        if recovered or failed:
            self._context.signals.emit(LeasesRecovered(recovered, failed))
            _log.warning("leases_recovered", recovered=recovered, failed=failed)
        return recovered, sum(ended.values())

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
            done = self._ends.end(expected.id, noting, tries=END_TRIES)
        except UnavailableError as error:
            # Its domain rows may be locked for long; its neighbours do not wait for them.
            _log.warning("end_failed", task_id=expected.id, error=str(error))
            read_clock(self._context.db, self._line)
            return None
        except Exception:
            _log.exception("end_failed", task_id=expected.id)
            return None
        return ended[0] if done is not None and ended else None

    def _moment(self, value: Any) -> dt.datetime:
        return moment(self._context.db.dialect, value)
