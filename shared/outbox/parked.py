"""The rows that are parked on resources: found fairly by tenant, made pending one by one.

Nothing here knows of places; every change names the resource that it expects in the row.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from shared.outbox.context import OutboxContext
from shared.outbox.db import Line
from shared.outbox.lanes import LaneKey, lower_lanes
from shared.outbox.pages import telling_kinds
from shared.outbox.records import add_events
from shared.outbox.statements import park as statements
from shared.outbox.states import State
from shared.outbox.window import moment

#: Seconds after which a row that waits for a place is let look for another way.
PATIENCE_SECONDS = 60.0
#: Rows among which a scan looks for those that may be woken now.
LOOK_PAST = 100
#: Tenants that one look steps through.
MAX_TENANTS = 100
_PENDING = json.dumps({"from": State.BLOCKED.value, "to": State.PENDING.value})


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """One parked row as it was read.

    `is_due` False: it waits for a time that has not come. `is_patient`: it came long ago.
    """

    id: int
    kind: str
    lane: LaneKey
    order_at: dt.datetime
    is_due: bool
    is_patient: bool


class ParkedRows:
    """Reads and wakes parked rows; raises UnavailableError as the database does."""

    def __init__(self, context: OutboxContext, line: Line | None = None) -> None:
        self._context = context
        self._line = line

    def resources(self) -> list[str]:
        """Return the resources on which something is parked."""
        text = self._context.db.dialect.sql(statements.NEXT_RESOURCE)

        def step(cursor: Any) -> list[str]:
            found: list[str] = []
            while True:
                cursor.execute(text, (found[-1] if found else "",))
                row = cursor.fetchone()
                if row is None:
                    return found
                found.append(row[0])

        return self._context.db.run(step, line=self._line, read_only=True)

    def next(self, resource: str, count: int) -> list[ParkedRow]:
        """Return up to `count` rows, the tenants in turn from the one behind the last served on."""
        after = self._context.turns.get(resource)

        def read(cursor: Any) -> list[ParkedRow]:
            tenants = self._tenants(cursor, resource, after, min(count, MAX_TENANTS))
            if not tenants:
                return []
            share = math.ceil(count / len(tenants))
            lists = [self._of_tenant(cursor, resource, tenant, share) for tenant in tenants]
            turns = chain.from_iterable(zip_longest(*lists))
            return [row for row in turns if row is not None][:count]

        return self._context.db.run(read, line=self._line, read_only=True)

    def next_that(
        self, resource: str, count: int, is_wanted: Callable[[ParkedRow], bool]
    ) -> list[ParkedRow]:
        """Return up to `count` rows that are wanted, past those that only wait for their time.

        Looks at some dozens of rows in the order of `next`, so that what cannot be woken yet does
        not hide what can.
        """
        found = self.next(resource, max(count, LOOK_PAST))
        return [row for row in found if is_wanted(row)][:count]

    def wake(self, resource: str, rows: Sequence[ParkedRow], *, token: str | None) -> list[int]:
        """Make those of these rows pending that are still parked there; returns their ids.

        `token` is the place that is reserved for the row, when there is one.
        """
        if not rows:
            return []
        by_id = {row.id: row for row in rows}
        slots = None if token is None else json.dumps({resource: token})
        woken = self._context.db.run(
            lambda cursor: self._unpark(cursor, resource, by_id, slots), line=self._line, tries=2
        )
        if woken:
            last = next(row for row in reversed(rows) if row.id in set(woken))
            self._context.turns[resource] = last.lane.tenant_id
            lanes = [(by_id[task_id].lane, by_id[task_id].order_at) for task_id in woken]
            lower_lanes(self._context.db, lanes, line=self._line)
        return woken

    def count_parked(self, resource: str, ids: Sequence[int]) -> int:
        """Return how many of these rows are parked there now."""
        text = self._context.db.dialect.sql_ids(statements.STILL_PARKED, ids=len(ids))

        def count(cursor: Any) -> int:
            cursor.execute(text, [*sorted(ids), resource])
            return int(cursor.fetchone()[0])

        return self._context.db.run(count, line=self._line, read_only=True)

    # -- steps ---------------------------------------------------------------------------------

    def _tenants(self, cursor: Any, resource: str, after: str | None, most: int) -> list[str]:
        sql = self._context.db.dialect.sql
        found: list[str] = []
        if after is not None:
            self._step(cursor, resource, sql(statements.NEXT_TENANT), after, found, most)
        # Around from the first one, up to where this began.
        self._step(cursor, resource, sql(statements.FIRST_TENANT), "", found, most)
        return found

    def _step(
        self, cursor: Any, resource: str, text: str, start: str, found: list[str], most: int
    ) -> None:
        step = self._context.db.dialect.sql(statements.NEXT_TENANT)
        known = set(found)
        while len(found) < most:
            cursor.execute(text, (resource, start))
            row = cursor.fetchone()
            if row is None or row[0] in known:
                return
            start, text = row[0], step
            found.append(start)

    def _of_tenant(self, cursor: Any, resource: str, tenant_id: str, most: int) -> list[ParkedRow]:
        dialect = self._context.db.dialect
        cursor.execute(
            dialect.sql(statements.PARKED), (-PATIENCE_SECONDS, resource, tenant_id, most)
        )
        return [
            ParkedRow(
                id=int(row[0]),
                kind=row[3],
                lane=LaneKey(row[1], row[2], row[4], int(row[5])),
                order_at=moment(dialect, row[6]),
                is_due=bool(row[7]),
                is_patient=bool(row[8]),
            )
            for row in cursor.fetchall()
        ]

    def _unpark(
        self, cursor: Any, resource: str, by_id: dict[int, ParkedRow], slots: str | None
    ) -> list[int]:
        dialect = self._context.db.dialect
        wanted = sorted(by_id)
        cursor.execute(
            dialect.sql_ids(statements.LOCK_PARKED, ids=len(wanted)), [*wanted, resource]
        )
        ids = [int(row[0]) for row in cursor.fetchall()]
        if not ids:
            return []
        cursor.execute(dialect.sql_ids(statements.UNPARK, ids=len(ids)), [slots, *ids, resource])
        telling = telling_kinds(self._context, (row.kind for row in by_id.values()))
        heard = [task_id for task_id in ids if by_id[task_id].kind in telling]
        add_events(cursor, dialect, [(task_id, State.PENDING.value, _PENDING) for task_id in heard])
        return ids
