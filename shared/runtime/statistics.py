"""What the whole system holds: open tasks by queue, region and state, and the age of the oldest.

Every question walks an index; its cost grows with the open tasks, never with those that ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shared.outbox.db import Database
from shared.outbox.states import ACTIVE, State

#: States that are counted: everything open, and the dead letters.
COUNTED = (*sorted(ACTIVE), State.FAILED)

_NEXT_QUEUE = "SELECT queue FROM tasks WHERE queue > {p} ORDER BY queue LIMIT 1"
_NEXT_REGION = "SELECT region FROM tasks WHERE queue = {p} AND region > {p} ORDER BY region LIMIT 1"
_HAS_BASE = "SELECT 1 FROM tasks WHERE queue = {p} AND region = '' LIMIT 1"
_COUNT = "SELECT COUNT(*) FROM tasks WHERE queue = {p} AND region = {p} AND state = {p}"
_RETRYING = (
    "SELECT COUNT(*) FROM tasks"
    " WHERE queue = {p} AND region = {p} AND state = 'scheduled' AND attempt > 0"
)
_OLDEST = (
    "SELECT MIN(due_at), {clock} FROM tasks"
    " WHERE queue = {p} AND region = {p} AND state = 'pending'"
)


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """One queue in one region. `oldest_pending_seconds` is 0 when nothing is pending."""

    queue: str
    region: str
    by_state: dict[str, int]
    retrying: int
    oldest_pending_seconds: float

    @property
    def open(self) -> int:
        """Return the depth: tasks that have not ended."""
        return sum(count for state, count in self.by_state.items() if state in ACTIVE)


def count_tasks(database: Database) -> list[QueueCounts]:
    """Count every queue and region that has rows, in transactions that only read."""
    sql = database.dialect.sql
    counts = []
    with database.transaction(read_only=True) as cursor:
        for queue, region in _queues(cursor, sql(_NEXT_QUEUE), sql(_HAS_BASE), sql(_NEXT_REGION)):
            by_state = {
                str(state): int(_one(cursor, sql(_COUNT), queue, region, str(state)) or 0)
                for state in COUNTED
            }
            retrying = 0
            if by_state[State.SCHEDULED]:
                retrying = int(_one(cursor, sql(_RETRYING), queue, region) or 0)
            age = 0.0
            if by_state[State.PENDING]:
                age = _age(database, cursor, sql(_OLDEST), queue, region)
            counts.append(QueueCounts(queue, region, by_state, retrying, age))
    return counts


def _queues(cursor: Any, next_queue: str, has_base: str, next_region: str) -> list[tuple[str, str]]:
    """Skip from name to name in the claim index; a GROUP BY would read all of it on SQLite."""
    found = []
    queue = ""
    while (queue := _one(cursor, next_queue, queue)) is not None:
        if _one(cursor, has_base, queue) is not None:
            found.append((queue, ""))
        region = ""
        while (region := _one(cursor, next_region, queue, region)) is not None:
            found.append((queue, region))
    return found


def _age(database: Database, cursor: Any, sql: str, queue: str, region: str) -> float:
    cursor.execute(sql, (queue, region))
    oldest, now = (database.dialect.to_time(value) for value in cursor.fetchone())
    if oldest is None or now is None:
        return 0.0
    return max(0.0, (now - oldest).total_seconds())


def _one(cursor: Any, sql: str, *values: str) -> Any:
    cursor.execute(sql, values)
    row = cursor.fetchone()
    return None if row is None else row[0]
