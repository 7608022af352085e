"""The task row as those read it who end it, send it back or bring it back.

A row is read by its id alone and judged in the process: what a locked read says is what holds.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from shared.outbox.db import cursor_of
from shared.outbox.dialect import Dialect
from shared.outbox.statements import end as statements
from shared.outbox.states import State


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row. Times are naive UTC on the database's clock, `now` is that clock at the read."""

    id: int
    queue: str
    region: str
    kind: str
    tenant_id: str
    state: State
    priority: int
    order_at: dt.datetime
    payload: str
    attempt: int
    max_attempts: int
    recoveries: int
    crashes: int
    dispatch_id: str | None
    owner: str | None
    fence: int
    is_leased: bool
    cancel_requested: bool
    error_code: str | None
    error_detail: str | None
    created_at: dt.datetime
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    now: dt.datetime
    #: Places held on resources, or reserved there for the task: name → token.
    slots: Mapping[str, str]

    def is_held_by(self, owner: str, fence: int) -> bool:
        """Tell whether this execution owns the task: running, owner, fence and lease."""
        return (
            self.state is State.RUNNING
            and self.owner == owner
            and self.fence == fence
            and self.is_leased
        )

    @property
    def age_seconds(self) -> float:
        """Return the seconds since the task was first due in this life."""
        return (self.now - max(self.created_at, self.order_at)).total_seconds()


def read(cursor: Any, dialect: Dialect, ids: Sequence[int]) -> dict[int, TaskRow]:
    """Read rows without locks."""
    return _select(cursor, dialect, statements.READ, ids)


def lock(cursor: Any, dialect: Dialect, ids: Sequence[int]) -> dict[int, TaskRow]:
    """Lock rows, ascending by id, and return those that exist.

    The domain rows that the same transaction changes must be locked before.
    """
    return _select(cursor, dialect, statements.LOCK, ids)


def lock_tasks(session: Session, dialect: Dialect, ids: Sequence[int]) -> dict[int, TaskRow]:
    """Lock rows in a Session's transaction; see `lock`."""
    cursor = cursor_of(session)
    try:
        return lock(cursor, dialect, ids)
    finally:
        cursor.close()


def _select(cursor: Any, dialect: Dialect, text: str, ids: Sequence[int]) -> dict[int, TaskRow]:
    if not ids:
        return {}
    cursor.execute(dialect.sql_ids(text, ids=len(ids)), sorted(ids))
    return {int(values[0]): _row(values, dialect) for values in cursor.fetchall()}


def _row(values: Sequence[Any], dialect: Dialect) -> TaskRow:
    def moment(value: Any) -> Any:
        return dialect.to_time(value)

    return TaskRow(
        id=int(values[0]),
        queue=values[1],
        region=values[2],
        kind=values[3],
        tenant_id=values[4],
        state=State(values[5]),
        priority=int(values[6]),
        order_at=moment(values[7]),
        payload=values[8],
        attempt=int(values[9]),
        max_attempts=int(values[10]),
        recoveries=int(values[11]),
        crashes=int(values[12]),
        dispatch_id=values[13],
        owner=values[14],
        fence=int(values[15]),
        is_leased=bool(values[16]),
        cancel_requested=bool(values[17]),
        error_code=values[18],
        error_detail=values[19],
        created_at=moment(values[20]),
        started_at=moment(values[21]),
        finished_at=moment(values[22]),
        now=moment(values[23]),
        slots=json.loads(values[24]) if values[24] else {},
    )
