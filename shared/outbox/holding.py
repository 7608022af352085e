"""Locking a task in the order that everybody keeps: its domain rows, then its own row.

What comes out is a locked row together with what is needed to call its kind's hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pydantic
import sqlalchemy as sa
import structlog
from sqlalchemy.orm import Session

from shared.core.errors import PermanentError
from shared.outbox import rows
from shared.outbox.context import OutboxContext
from shared.outbox.db import cursor_of
from shared.outbox.kinds import EndedTask, Kind
from shared.outbox.rows import TaskRow
from shared.outbox.settling import is_settle, kind_of

#: Errors of the driver that tell of a mistake in a hook, not of a database in trouble.
_MISTAKES = (
    sa.exc.IntegrityError,
    sa.exc.DataError,
    sa.exc.ProgrammingError,
    sa.exc.NotSupportedError,
)

_log = structlog.get_logger("outbox.ends")


@dataclass(frozen=True, slots=True)
class Held:
    """A locked row and its kind's hooks.

    `kind` None means that they cannot be called here: the kind or its payload's version is unknown
    to this process, or its domain rows could not be locked.
    """

    row: TaskRow
    kind: Kind[Any] | None
    payload: pydantic.BaseModel | None

    def seen(self, *, attempt: int, code: str | None, detail: str | None) -> EndedTask:
        """Return what a hook sees of the task."""
        if self.payload is None:
            raise PermanentError("the payload cannot be read here", task_id=self.row.id)
        return EndedTask(
            id=self.row.id,
            kind=self.row.kind,
            queue=self.row.queue,
            tenant_id=self.row.tenant_id,
            payload=self.payload,
            attempt=attempt,
            error_code=code,
            error_detail=detail,
        )


def take(
    context: OutboxContext,
    session: Session,
    task_id: int,
    *,
    also: Callable[[Session], object] | None = None,
) -> Held | None:
    """Lock a task's domain rows, then its own row; None when there is no such task.

    `also` locks more domain rows, after those of the kind.
    The caller judges `Held.row`, which may say something else than a look before the locks.
    """
    dialect = context.db.dialect
    cursor = cursor_of(session)
    try:
        before = rows.read(cursor, dialect, [task_id]).get(task_id)
        if before is None:
            return None
        kind, payload = _hooks(context, before)
        if kind is not None and kind.locks is not None:
            try:
                kind.locks(session, payload)
            except Exception as error:
                if not is_mistake(context, error):
                    raise
                _log.exception("locks_failed", task_id=task_id, kind=before.kind)
                kind = payload = None
        if also is not None:
            also(session)
        row = rows.lock(cursor, dialect, [task_id]).get(task_id)
        return None if row is None else Held(row, kind, payload)
    finally:
        cursor.close()


def hold(context: OutboxContext, row: TaskRow) -> Held:
    """Return a locked row with its hooks; the caller holds its domain rows already."""
    return Held(row, *_hooks(context, row))


def is_mistake(context: OutboxContext, error: Exception) -> bool:
    """Tell a mistake in a hook from a database in trouble, which is tried again."""
    return isinstance(error, _MISTAKES) or not isinstance(error, context.db.errors)


def _hooks(
    context: OutboxContext, row: TaskRow
) -> tuple[Kind[Any] | None, pydantic.BaseModel | None]:
    kind = context.kinds.find(row.kind)
    if kind is None and is_settle(row.kind):
        kind = kind_of(row.queue)
    if kind is None:
        return None, None
    try:
        return kind, kind.load(row.payload)
    except PermanentError:
        return None, None
