"""Settle tasks: the hook of a task that was ended where its kind is not known, called where it is.

Each queue has one kind of them. They take the same locks as the end would have taken, and do
nothing unless the task is still ended.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pydantic
from sqlalchemy.orm import Session

from shared.core.errors import TransientError
from shared.outbox import rows
from shared.outbox.kinds import EndedTask, Kind
from shared.outbox.states import State

if TYPE_CHECKING:
    from shared.outbox.context import OutboxContext
    from shared.outbox.execution import Execution

_SUFFIX = ".settle"


class SettleTask(pydantic.BaseModel):
    """Which task's end is to be settled."""

    task_id: int


@dataclass(frozen=True, slots=True)
class Settling:
    """The settle kind of one queue and the function that runs it."""

    kind: Kind[SettleTask]
    handler: Callable[[Execution, SettleTask], None]


def settle_kind(queue: str, context: OutboxContext) -> Settling:
    """Return a queue's settle kind with its handler, for workers that know the queue's kinds."""
    return Settling(kind_of(queue), _handler(context))


@functools.cache
def kind_of(queue: str) -> Kind[SettleTask]:
    """Return the kind of a queue's settle tasks; the same one each time."""
    return Kind(name=f"{queue}{_SUFFIX}", payload=SettleTask, time_limit_seconds=60.0)


def is_settle(kind_name: str) -> bool:
    """Tell whether a kind is one of settle tasks: these have no hooks and are never superseded."""
    return kind_name.endswith(_SUFFIX)


def _handler(context: OutboxContext) -> Callable[[Execution, SettleTask], None]:
    def settle(execution: Execution, payload: SettleTask) -> None:
        db, task_id = context.db, payload.task_id
        read = db.run(lambda cursor: rows.read(cursor, db.dialect, [task_id]), read_only=True)
        found = read.get(task_id)
        if found is None or found.state not in (State.FAILED, State.CANCELLED):
            return
        kind = context.kinds.find(found.kind)
        if kind is None:
            raise TransientError("the kind is not known here either", kind=found.kind)
        body = kind.load(found.payload)
        if kind.locks is None or kind.on_end is None:
            return
        locks, on_end = kind.locks, kind.on_end
        ended: dict[int, rows.TaskRow] = {}

        def lock(session: Session) -> None:
            # Its own row has the larger id, and is locked after this.
            locks(session, body)
            ended.clear()
            ended.update(rows.lock_tasks(session, db.dialect, [task_id]))

        with execution.complete(lock=[lock]) as tx:
            row = ended.get(task_id)
            if row is not None and row.state in (State.FAILED, State.CANCELLED):
                on_end(tx.session, _ended(row, body), row.state.value)

    return settle


def _ended(row: rows.TaskRow, payload: Any) -> EndedTask:
    return EndedTask(
        id=row.id,
        kind=row.kind,
        queue=row.queue,
        tenant_id=row.tenant_id,
        payload=payload,
        attempt=row.attempt,
        error_code=row.error_code,
        error_detail=row.error_detail,
    )
