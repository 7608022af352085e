"""What a person may do to a task that has ended, or waits for its time: run it again, or now.

Each action is one audited transaction on one row, in the order of locks that everybody keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from shared.core.errors import ConflictError, NotFoundError
from shared.core.ids import new_id
from shared.outbox import rows
from shared.outbox.after_commit import after_commit
from shared.outbox.announce import announce
from shared.outbox.context import OutboxContext
from shared.outbox.db import cursor_of
from shared.outbox.holding import Held, take
from shared.outbox.records import add_attempt, add_audit, add_event, has_attempt
from shared.outbox.rows import TaskRow
from shared.outbox.statements import end as statements
from shared.outbox.states import State


def retry(
    context: OutboxContext,
    task_id: int,
    *,
    by: str,
    reason: str = "",
    force: bool = False,
    tenant_id: str | None = None,
) -> State:
    """Give a failed or cancelled task (with `force` a completed one) a new life; returns its state.

    Fence and checkpoint stay, so that it goes on where it was. Raises ConflictError when its state
    does not allow it, when it was superseded, when another task holds its dedupe key, or when the
    kind refuses; NotFoundError; UnavailableError when the database does not answer.
    """

    def work(session: Session) -> TaskRow:
        held = _take(context, session, task_id, tenant_id)
        _check_ended(held.row, force=force)
        if held.kind is None:
            raise ConflictError(
                f"kind {held.row.kind!r} is not known to this process", code="kind_unknown"
            )
        if held.kind.on_retry is not None:
            seen = held.seen(
                attempt=held.row.attempt,
                code=held.row.error_code,
                detail=held.row.error_detail,
            )
            held.kind.on_retry(session, seen)
            session.flush()
        _revive(context, session, held.row, by=by, reason=reason, force=force)
        return held.row

    row = context.db.run_session(work)
    # A new life is due from now on, and takes its turn behind what waits already.
    announce(context, [replace(row, order_at=row.now)])
    return State.PENDING


def dispatch_now(
    context: OutboxContext,
    task_id: int,
    *,
    by: str,
    reason: str = "",
    tenant_id: str | None = None,
) -> State:
    """Make a scheduled task due at once; returns its state. Raises ConflictError, NotFoundError."""

    def work(session: Session) -> TaskRow:
        held = _take(context, session, task_id, tenant_id)
        if held.row.state is not State.SCHEDULED:
            raise ConflictError(f"the task is {held.row.state}, not scheduled")
        _make_due(context, session, held.row)
        _audit(context, session, held.row, "dispatch_now", by, reason)
        return held.row

    announce(context, [context.db.run_session(work)])
    return State.PENDING


def wake(context: OutboxContext, session: Session, task_id: int) -> bool:
    """Make a task due whose snooze waits for the event that this transaction records.

    Call it after the event's row was locked and written. False when the task does not wait: one
    that runs finds the event by itself, as its snooze looks again under the lock of the same row.
    """
    return wake_all(context, session, [task_id]) == 1


def wake_all(context: OutboxContext, session: Session, task_ids: Sequence[int]) -> int:
    """Do as `wake` for many tasks at once; returns how many were waiting."""
    found = rows.lock_tasks(session, context.db.dialect, task_ids)
    waiting = [row for _, row in sorted(found.items()) if row.state is State.SCHEDULED]
    for row in waiting:
        _make_due(context, session, row)
    after_commit(session, lambda: announce(context, waiting))
    return len(waiting)


def _take(context: OutboxContext, session: Session, task_id: int, tenant_id: str | None) -> Held:
    held = take(context, session, task_id)
    if held is None or (tenant_id is not None and held.row.tenant_id != tenant_id):
        raise NotFoundError(f"there is no task {task_id}", task_id=task_id)
    return held


def _check_ended(row: TaskRow, *, force: bool) -> None:
    if row.state is State.COMPLETED and not force:
        raise ConflictError("the task is completed: only force runs it again", code="completed")
    if row.state not in (State.FAILED, State.CANCELLED, State.COMPLETED):
        raise ConflictError(f"the task is {row.state}, it has not ended", code="not_ended")
    if row.state is State.CANCELLED and row.error_code == "superseded":
        raise ConflictError("newer work has taken the task's place", code="superseded")


def _revive(
    context: OutboxContext, session: Session, row: TaskRow, *, by: str, reason: str, force: bool
) -> None:
    db = context.db
    cursor = cursor_of(session)
    try:
        outcome = row.state.value
        # The row is about to forget its end: it is kept beside it, once.
        if not has_attempt(cursor, db.dialect, row, outcome):
            add_attempt(
                cursor,
                db.dialect,
                row,
                attempt=row.attempt,
                outcome=outcome,
                code=row.error_code,
                detail=row.error_detail,
                at_its_end=True,
            )
        try:
            cursor.execute(
                db.dialect.sql(statements.REVIVE),
                (new_id(), row.id, row.state.value, row.fence),
            )
        except db.engine.dialect.loaded_dbapi.IntegrityError as error:
            raise ConflictError(
                "another active task holds its dedupe key", code="dedupe_conflict"
            ) from error
        if cursor.rowcount != 1:
            raise RuntimeError(f"task {row.id} changed under its lock")
        data = {
            "from": row.state.value,
            "to": State.PENDING.value,
            "by": by,
            "reason": reason,
            "force": force,
        }
        add_event(cursor, db.dialect, row.id, "manual_retry", data)
    finally:
        cursor.close()
    _audit(context, session, row, "retry_forced" if force else "retry", by, reason)


def _make_due(context: OutboxContext, session: Session, row: TaskRow) -> None:
    dialect = context.db.dialect
    cursor = cursor_of(session)
    try:
        cursor.execute(dialect.sql(statements.MAKE_DUE), (row.id, row.fence))
        if cursor.rowcount != 1:
            raise RuntimeError(f"task {row.id} changed under its lock")
        kind = context.kinds.find(row.kind)
        if kind is not None and kind.events:
            data = {"from": row.state.value, "to": State.PENDING.value}
            add_event(cursor, dialect, row.id, "pending", data)
    finally:
        cursor.close()


def _audit(
    context: OutboxContext, session: Session, row: TaskRow, action: str, by: str, reason: str
) -> None:
    cursor = cursor_of(session)
    try:
        add_audit(
            cursor,
            context.db.dialect,
            row,
            action=action,
            by=by,
            reason=reason,
            state_after=State.PENDING.value,
        )
    finally:
        cursor.close()
