"""What is purged: ended tasks, old events and audit rows, the rows of dead processes.

Small transactions in the order of an index, so that purging never stands in anybody's way.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from shared.core.clock import Deadline
from shared.outbox.context import OutboxContext
from shared.outbox.db import Line
from shared.outbox.dialect import Dialect
from shared.outbox.nodes import drop_old_nodes
from shared.outbox.statements import purge as statements
from shared.outbox.states import State
from shared.outbox.window import EPOCH, Place, moment

#: Seconds that one round may take; the next goes on.
ROUND_SECONDS = 2.0
#: Rows of one transaction.
PAGE = 200


class Housekeeping:
    """Purges by the retention of the settings. For one thread; many processes may do it at once."""

    def __init__(self, context: OutboxContext, line: Line) -> None:
        self._context = context
        self._line = line
        settings = context.settings
        self._retention = {
            State.COMPLETED: settings.retain_completed_seconds,
            State.CANCELLED: settings.retain_cancelled_seconds,
            State.FAILED: settings.retain_failed_seconds,
        }
        #: How far each index range was read, so that rows that stay are not read again and again.
        self._resume: dict[tuple[Place, State], dt.datetime] = {}

    def run_once(self, places: Sequence[Place]) -> int:
        """Purge for at most two seconds; returns how many rows went. Raises UnavailableError."""
        deadline = Deadline(ROUND_SECONDS)
        count = drop_old_nodes(self._context)
        for table, seconds in (
            ("task_events", self._context.settings.retain_events_seconds),
            ("task_audit", self._context.settings.retain_audit_seconds),
        ):
            while seconds > 0 and not deadline.expired():
                dropped = self._drop_records(table, seconds)
                count += dropped
                if dropped < PAGE:
                    break
        for place in places:
            for state, seconds in self._retention.items():
                if seconds > 0:
                    count += self._purge(place, state, seconds, deadline)
        return count

    def _purge(self, place: Place, state: State, seconds: float, deadline: Deadline) -> int:
        """Drop ended tasks with their attempts and events, the earliest due first."""
        dialect = self._context.db.dialect
        count = 0
        start = self._resume.get((place, state), EPOCH)
        while not deadline.expired():
            values = (*place, state.value, dialect.from_time(start), -seconds, PAGE)
            page = self._context.db.run(
                partial(self._read, values=values),
                line=self._line,
                read_only=True,
            )
            ids = [int(row[0]) for row in page]
            if ids:
                count += self._context.db.run(
                    partial(self._drop_tasks, ids=ids, state=state, seconds=seconds),
                    line=self._line,
                )
            if len(page) < PAGE:
                # The end was reached: what could not go yet is looked at again from the start.
                self._resume.pop((place, state), None)
                return count
            if (reached := moment(dialect, page[-1][1])) == start:
                # A page of one moment: what is left of it waits, what lies behind does not.
                reached += dt.timedelta(microseconds=1)
            start = self._resume[place, state] = reached
        return count

    def _read(self, cursor: Any, values: Sequence[Any]) -> list[Sequence[Any]]:
        cursor.execute(self._context.db.dialect.sql(statements.ENDED), values)
        return list(cursor.fetchall())

    def _drop_tasks(self, cursor: Any, ids: Sequence[int], state: State, seconds: float) -> int:
        settings = self._context.settings
        cursor.execute(
            self._context.db.dialect.sql_ids(statements.LOCK_ENDED, ids=len(ids)),
            [*sorted(ids), state.value, -seconds, -settings.idempotency_seconds],
        )
        locked = [(int(row[0]), state.value) for row in cursor.fetchall()]
        return _drop(cursor, self._context.db.dialect, locked)

    def _drop_records(self, table: str, seconds: float) -> int:
        """Drop the oldest rows of a table whose ids grow with time."""
        sql = self._context.db.dialect.sql
        select, drop = statements.OLDEST[table], statements.DROP[table]

        def work(cursor: Any) -> int:
            cursor.execute(sql(select), (PAGE,))
            old = [int(row[0]) for row in cursor.fetchall()]
            count = 0
            for row_id in old:
                cursor.execute(sql(drop), (row_id, -seconds))
                if cursor.rowcount == 0:
                    break
                count += 1
            return count

        return self._context.db.run(work, line=self._line)


def drop_ended(context: OutboxContext, session: Session, task_ids: Sequence[int]) -> int:
    """Drop ended tasks whose domain rows this transaction forgets; returns how many.

    For kinds whose failures wait for nobody any more once their rows are gone. Tasks that have not
    ended, that another holds, or that a key still needs stay.
    """
    if not task_ids:
        return 0
    dialect = context.db.dialect
    text = dialect.sql_ids(statements.LOCK_NAMED, ids=len(task_ids))
    with context.db.cursor_in(session) as cursor:
        cursor.execute(text, [*sorted(task_ids), -context.settings.idempotency_seconds])
        return _drop(cursor, dialect, [(int(row[0]), str(row[1])) for row in cursor.fetchall()])


def _drop(cursor: Any, dialect: Dialect, locked: Sequence[tuple[int, str]]) -> int:
    for task_id, state in locked:
        cursor.execute(dialect.sql(statements.DROP_ATTEMPTS), (task_id,))
        cursor.execute(dialect.sql(statements.DROP_EVENTS), (task_id,))
        cursor.execute(dialect.sql(statements.DROP_TASK), (task_id, state))
    return len(locked)
