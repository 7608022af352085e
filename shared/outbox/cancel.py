"""Cancelling: at once what waits, by request what runs; and superseding, the same by newer work.

The commit of the request is the acknowledgement. From then on `complete()` refuses, and every other
way out of `running` leads to `cancelled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import redis
import structlog
from sqlalchemy.orm import Session

from shared.core.errors import NotFoundError
from shared.core.failpoints import failpoint
from shared.outbox import rows
from shared.outbox.after_commit import after_commit
from shared.outbox.context import OutboxContext
from shared.outbox.db import cursor_of
from shared.outbox.ends import End, Ends, EnqueuePort
from shared.outbox.holding import Held, hold, take
from shared.outbox.records import add_audit, add_event, clean_text
from shared.outbox.rows import TaskRow
from shared.outbox.settling import is_settle
from shared.outbox.statements import end as statements
from shared.outbox.states import TERMINAL, State

#: What `CancelAnswer.state` says of a running task that was asked to stop.
CANCELLING = "cancelling"

_log = structlog.get_logger("outbox.cancel")


@dataclass(frozen=True, slots=True)
class CancelAnswer:
    """`cancelled` (done), `cancelling` (it runs and will stop), or the state in which it had ended.

    `is_new` tells whether this call made the difference.
    """

    state: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class Superseded:
    """Which of the older tasks were ended at once, and which were asked to stop."""

    cancelled: tuple[int, ...]
    cancelling: tuple[int, ...]


def cancel(
    context: OutboxContext,
    enqueuer: EnqueuePort,
    task_id: int,
    *,
    by: str,
    reason: str = "",
    tenant_id: str | None = None,
) -> CancelAnswer:
    """Cancel one task in a transaction of its own; safe to repeat.

    Raises NotFoundError for an id that is not there or another tenant's, UnavailableError when the
    database does not answer: then it may or may not have been cancelled.
    """
    ends = Ends(context, enqueuer)

    def work(session: Session) -> CancelAnswer:
        held = take(context, session, task_id)
        if held is None or (tenant_id is not None and held.row.tenant_id != tenant_id):
            raise NotFoundError(f"there is no task {task_id}", task_id=task_id)
        row = held.row
        if row.state in TERMINAL:
            return CancelAnswer(row.state.value, is_new=False)
        detail = f"{by}: {reason}" if reason else by
        if row.state is State.RUNNING:
            if row.cancel_requested:
                return CancelAnswer(CANCELLING, is_new=False)
            _request(context, session, row, code="cancelled", detail=detail)
            _audit(context, session, row, by=by, reason=reason, state_after=row.state)
            return CancelAnswer(CANCELLING, is_new=True)
        ends.end_locked(session, held, End(state=State.CANCELLED, code="cancelled", detail=detail))
        _audit(context, session, row, by=by, reason=reason, state_after=State.CANCELLED)
        return CancelAnswer(State.CANCELLED.value, is_new=True)

    answer = context.db.run_session(work)
    failpoint("cancel.after")
    return answer


def supersede(
    context: OutboxContext,
    enqueuer: EnqueuePort,
    session: Session,
    task_ids: Sequence[int],
    *,
    detail: str = "newer work has taken its place",
) -> Superseded:
    """End older work inside the caller's transaction.

    The caller has found the tasks under the lock of their domain rows, and holds those rows. All
    task rows are locked here, ascending, and none may be locked by this transaction before that has
    a larger id: inside `complete()` call `rows.lock_tasks` for them among its locks. Settle tasks
    and tasks that have ended are left alone.
    """
    ends = Ends(context, enqueuer)
    cancelled: list[int] = []
    cancelling: list[int] = []
    locked = rows.lock_tasks(session, context.db.dialect, task_ids)
    for task_id in sorted(locked):
        row = locked[task_id]
        if row.state in TERMINAL or is_settle(row.kind):
            continue
        if row.state is State.RUNNING:
            if not row.cancel_requested:
                _request(context, session, row, code="superseded", detail=detail)
            cancelling.append(task_id)
            continue
        held: Held = hold(context, row)
        end = End(state=State.CANCELLED, code="superseded", detail=detail, outcome="superseded")
        ends.end_locked(session, held, end)
        cancelled.append(task_id)
    return Superseded(tuple(cancelled), tuple(cancelling))


def _request(
    context: OutboxContext, session: Session, row: TaskRow, *, code: str, detail: str
) -> None:
    dialect = context.db.dialect
    cursor = cursor_of(session)
    try:
        cursor.execute(
            dialect.sql(statements.REQUEST_CANCEL),
            (code, clean_text(detail), row.id, row.owner, row.fence),
        )
        if cursor.rowcount != 1:
            raise RuntimeError(f"task {row.id} changed under its lock")
        data = {"from": row.state.value, "code": code, "detail": clean_text(detail)}
        add_event(cursor, dialect, row.id, "cancel_requested", data)
    finally:
        cursor.close()
    node = (row.owner or "").rpartition(":")[0]
    after_commit(session, lambda: _ring(context, node, row.id))


def _audit(
    context: OutboxContext,
    session: Session,
    row: TaskRow,
    *,
    by: str,
    reason: str,
    state_after: State,
) -> None:
    cursor = cursor_of(session)
    try:
        add_audit(
            cursor,
            context.db.dialect,
            row,
            action="cancel",
            by=by,
            reason=reason,
            state_after=state_after.value,
        )
    finally:
        cursor.close()


def _ring(context: OutboxContext, node: str, task_id: int) -> None:
    """Wake the owner, so that it stops within a second; without Redis its next renewal tells it."""
    try:
        context.scripts.ring_node(node)
    except redis.RedisError as error:
        _log.info("owner_not_rung", task_id=task_id, node=node, error=str(error))
