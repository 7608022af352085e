"""How a task ends other than by completion, whoever ends it: in one order, with the domain's hook.

State, records and `on_end` go into one transaction, so that nothing in the domain is left waiting
for a task that has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from sqlalchemy.orm import Session

from shared.outbox import settling
from shared.outbox.after_commit import after_commit
from shared.outbox.context import OutboxContext
from shared.outbox.db import TRIES, cursor_of
from shared.outbox.holding import Held, is_mistake, take
from shared.outbox.parking import Parking
from shared.outbox.records import add_attempt, add_event, clean_code, clean_text
from shared.outbox.rows import TaskRow
from shared.outbox.signals import EndedWithoutAnswer
from shared.outbox.statements import end as statements
from shared.outbox.states import TERMINAL, State, is_legal

_log = structlog.get_logger("outbox.ends")


class EnqueuePort(Protocol):
    """What ends and completions need of the `Enqueuer`."""

    def enqueue(self, session: Session, kind: Any, payload: Any, **options: Any) -> Any:
        """Write a task in the session's transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a task ends.

    `outcome` names the attempt in `task_attempts`, by default like the state. `counted` tells
    whether this was a handler's answer, `crashed` whether a lease was lost without one.
    """

    state: State
    code: str
    detail: str = ""
    outcome: str = ""
    counted: bool = False
    crashed: bool = False


class Ends:
    """Ends tasks for one outbox."""

    def __init__(self, context: OutboxContext, enqueuer: EnqueuePort) -> None:
        self._context = context
        self._enqueuer = enqueuer
        self._dialect = context.db.dialect

    def end(
        self, task_id: int, judge: Callable[[TaskRow], End | None], *, tries: int = TRIES
    ) -> TaskRow | None:
        """End one task in a transaction of its own, if `judge` of its locked row says how.

        `judge` may be called more than once: up to `tries` times, each after up to a lock wait's
        time. Returns the row as it was, None when it was left
        alone. Raises UnavailableError when the database does not answer.
        """

        def work(session: Session) -> TaskRow | None:
            held = take(self._context, session, task_id)
            end = None if held is None else judge(held.row)
            if held is None or end is None:
                return None
            self.end_locked(session, held, end)
            return held.row

        return self._context.db.run_session(work, tries=tries)

    def end_locked(self, session: Session, held: Held, end: End) -> None:
        """End a locked task in the caller's transaction; `on_end` is called, or left to a settle.

        The signal of an end without a handler's answer is given after the commit.
        """
        row, state = held.row, end.state
        if state not in TERMINAL or not is_legal(row.state, state):
            raise ValueError(f"task {row.id}: no end from {row.state} to {state}")
        code, detail = clean_code(end.code), clean_text(end.detail)
        outcome = end.outcome or state.value
        attempt = row.attempt + end.counted
        cursor = cursor_of(session)
        try:
            self._update(cursor, row, end, code, detail)
            if row.state is State.RUNNING:
                add_attempt(
                    cursor,
                    self._dialect,
                    row,
                    attempt=attempt,
                    outcome=outcome,
                    code=code,
                    detail=detail,
                )
            data = {
                "from": row.state.value,
                "to": state.value,
                "code": code,
                "detail": detail,
                "attempt": attempt,
            }
            add_event(cursor, self._dialect, row.id, state.value, data)
        finally:
            cursor.close()
        self._call_on_end(session, held, state, attempt, code, detail)
        if row.slots and row.state is not State.RUNNING:
            # Woken for a place that it will not use.
            after_commit(session, lambda: Parking(self._context).give_up(row.slots))
        if not end.counted:
            signal = EndedWithoutAnswer(row.queue, row.kind, outcome)
            after_commit(session, lambda: self._context.signals.emit(signal))

    def enqueue_settle(self, session: Session, row: TaskRow) -> None:
        """Leave the hook of an ended task to a worker that knows its kind; at most one waits."""
        self._enqueuer.enqueue(
            session,
            settling.kind_of(row.queue),
            settling.SettleTask(task_id=row.id),
            tenant_id=row.tenant_id,
            region=row.region,
            dedupe_key=f"settle:{row.id}",
        )

    def _update(
        self, cursor: Any, row: TaskRow, end: End, code: str | None, detail: str | None
    ) -> None:
        if row.state is State.RUNNING:
            lost = int(end.crashed)
            cursor.execute(
                self._dialect.sql(statements.END_RUNNING),
                (
                    *(end.state.value, int(end.counted), code, detail, lost, lost),
                    *(row.id, row.owner, row.fence),
                ),
            )
        else:
            cursor.execute(
                self._dialect.sql(statements.END_WAITING),
                (end.state.value, code, detail, row.id, row.state.value, row.fence),
            )
        if cursor.rowcount != 1:
            raise RuntimeError(f"task {row.id} changed under its lock")

    def _call_on_end(
        self,
        session: Session,
        held: Held,
        state: State,
        attempt: int,
        code: str | None,
        detail: str | None,
    ) -> None:
        if settling.is_settle(held.row.kind):
            return
        if held.kind is None:
            self.enqueue_settle(session, held.row)
            return
        if held.kind.on_end is None:
            return
        savepoint = session.begin_nested()
        try:
            held.kind.on_end(
                session, held.seen(attempt=attempt, code=code, detail=detail), state.value
            )
            savepoint.commit()
        except Exception as error:
            if not is_mistake(self._context, error):
                raise
            # The end itself must not fail with its hook; the settle task tries the hook again.
            _log.exception("on_end_failed", task_id=held.row.id, kind=held.row.kind)
            savepoint.rollback()
            self.enqueue_settle(session, held.row)
