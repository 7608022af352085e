"""Writing what a handler answered instead of finishing: one fenced transition out of `running`.

A write that the database does not take is tried again until the lease ends on the local clock, and
is then left to the lease scan. Nothing here ever completes a task.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from sqlalchemy.orm import Session

from shared.core.clock import monotonic
from shared.core.errors import BloxError, LeaseLost, TransientError, UnavailableError
from shared.core.failpoints import failpoint
from shared.core.outcomes import Snooze
from shared.outbox import rows
from shared.outbox.announce import announce
from shared.outbox.context import OutboxContext
from shared.outbox.db import cursor_of
from shared.outbox.ends import End, Ends, EnqueuePort
from shared.outbox.execution import CLAIMED, ENDED, SETTLING, Execution
from shared.outbox.holding import Held, is_mistake, take
from shared.outbox.parking import Parking
from shared.outbox.policy import RetryPolicy
from shared.outbox.records import add_attempt, add_events, clean_code, clean_text
from shared.outbox.rows import TaskRow
from shared.outbox.signals import Ended, LeaseLossSeen
from shared.outbox.statements import end as statements
from shared.outbox.states import State
from shared.outbox.verdicts import Answer, Facts, GiveBack, Verdict, judge, normalize

#: Seconds between tries of a write that the database did not take: doubled up to the second.
FIRST_WAIT_SECONDS = 0.05
LAST_WAIT_SECONDS = 2.0
#: How often an answer that is refused for what it says is tried, before a plain retry stands in for
#: it, and then how often that one.
_TRIES_REFUSED = 3

_DEFAULT_POLICY = RetryPolicy()
_log = structlog.get_logger("outbox.answers")


class Answers:
    """Settles executions for one process. Thread-safe."""

    def __init__(self, context: OutboxContext, enqueuer: EnqueuePort) -> None:
        self._context = context
        self._ends = Ends(context, enqueuer)
        self._parking = Parking(context)

    def settle(self, execution: Execution, answer: Answer) -> None:
        """Write a handler's answer, and let the execution go; never raises.

        An execution that `complete()` has ended already is only let go. One whose lease is lost
        writes nothing.
        """
        with execution.lock:
            if execution.phase == ENDED:
                return
            execution.phase = SETTLING
        if execution.completed:
            _log.warning("error_after_completion", task_id=execution.task.id, answer=repr(answer))
            self._leave(execution, "completed")
            return
        answer = normalize(answer, execution.stop_error)
        if isinstance(answer, BaseException):
            self._log_error(execution, answer)
        verdict: Verdict | None = None
        wait_seconds, is_unknown, refusals = FIRST_WAIT_SECONDS, False, 0
        while not isinstance(answer, LeaseLost):
            try:
                verdict = self._try(execution, answer, is_unknown=is_unknown)
                break
            except Exception as error:
                is_unknown = True
                refusals += not isinstance(error, UnavailableError)
                left = execution.lease_ends - monotonic()
                if left <= 0 or refusals >= 2 * _TRIES_REFUSED:
                    _log.error("answer_left_to_scan", task_id=execution.task.id, error=str(error))
                    break
                _log.warning("answer_tried_again", task_id=execution.task.id, error=str(error))
                if refusals == _TRIES_REFUSED:
                    # Its lease is renewed all the while: it must not be tried for ever.
                    answer = TransientError(
                        f"the answer could not be written: {error}", code="answer_unwritable"
                    )
                threading.Event().wait(min(wait_seconds, left))
                wait_seconds = min(LAST_WAIT_SECONDS, wait_seconds * 2)
        if verdict is None:
            if execution.stop(LeaseLost("the task is another's now", task_id=execution.task.id)):
                self._context.signals.emit(LeaseLossSeen(1))
            self._leave(execution, "lost")
        else:
            self._report(execution, verdict)
            if verdict.resource is not None and verdict.wait_seconds <= 0:
                # The place may have been given back before the row was parked.
                self._parking.look_again(verdict.resource)

    def give_back(self, executions: Sequence[Execution]) -> None:
        """Make tasks pending again whose executions no thread has started; never raises.

        Executions that a thread has meanwhile started, or that are over, are left alone.
        """
        mine = [execution for execution in executions if self._seize(execution)]
        if not mine:
            return
        try:
            rest = self._give_back_group(mine)
        except Exception as error:
            # Nobody renews their leases any more: the scan brings them back.
            _log.warning("give_back_left_to_scan", count=len(mine), error=str(error))
            rest = []
        for execution in rest:
            # Cancelled meanwhile, or lost: each has its own end.
            execution.phase = SETTLING
            self.settle(execution, GiveBack())
        for execution in mine:
            if execution.phase == ENDED:
                self._context.executions.remove(execution)

    # -- one answer ------------------------------------------------------------------------

    def _try(self, execution: Execution, answer: Answer, *, is_unknown: bool) -> Verdict | None:
        """Judge and write in one transaction; None when the task is not this execution's any more.

        `is_unknown` says that an earlier try may have been committed without our hearing of it.
        """
        made_pending: list[TaskRow] = []
        ready = answer.ready if isinstance(answer, Snooze) else None

        def work(session: Session) -> Verdict | None:
            made_pending.clear()
            events: list[bool] = []
            look = (
                None if ready is None else lambda session: events.append(self._ask(ready, session))
            )
            held = take(self._context, session, execution.task.id, also=look)
            if held is None:
                return None
            # The event of a snooze may have come before its row was locked: a lost wake-up.
            has_come = GiveBack("what it waits for is there") if any(events) else None
            verdict = judge(has_come or answer, self._facts(held.row, execution))
            if verdict is None:
                return None
            if not held.row.is_held_by(execution.owner, execution.fence):
                was_ours = is_unknown and held.row.fence == execution.fence
                return verdict if was_ours and held.row.state is verdict.state else None
            if verdict.state is State.PENDING:
                made_pending.append(held.row)
            self._write(session, held, verdict)
            return verdict

        failpoint("answer.before")
        verdict = self._context.db.run_session(work)
        failpoint("answer.after")
        announce(self._context, made_pending)
        return verdict

    def _ask(self, ready: Callable[[Session], bool], session: Session) -> bool:
        """Ask whether the event of a snooze has come; a mistake in the question is a no."""
        try:
            return ready(session)
        except Exception as error:
            if not is_mistake(self._context, error):
                raise
            _log.exception("snooze_ready_failed")
            return False

    def _write(self, session: Session, held: Held, verdict: Verdict) -> None:
        if verdict.state in (State.FAILED, State.CANCELLED):
            end = End(
                state=verdict.state,
                code=verdict.code or verdict.outcome,
                detail=verdict.detail or "",
                counted=verdict.counted,
            )
            self._ends.end_locked(session, held, end)
            return
        row, dialect = held.row, self._context.db.dialect
        code, detail = clean_code(verdict.code), clean_text(verdict.detail)
        attempt = row.attempt + verdict.counted
        if verdict.state is State.PENDING:
            # What was recorded of an earlier attempt stays: this one has nothing to add.
            code, detail = row.error_code, row.error_detail
        cursor = cursor_of(session)
        try:
            cursor.execute(
                dialect.sql(statements.RESCHEDULE),
                (
                    *(verdict.state.value, int(verdict.counted), verdict.wait_seconds),
                    *(code, detail, verdict.resource, row.id, row.owner, row.fence),
                ),
            )
            if cursor.rowcount != 1:
                raise RuntimeError(f"task {row.id} changed under its lock")
            if verdict.counted:
                add_attempt(
                    cursor,
                    dialect,
                    row,
                    attempt=attempt,
                    outcome=verdict.outcome,
                    code=code,
                    detail=detail,
                )
            if verdict.counted or (held.kind is not None and held.kind.events):
                add_events(cursor, dialect, [_event(row, verdict, attempt)])
        finally:
            cursor.close()

    def _facts(self, row: TaskRow, execution: Execution) -> Facts:
        kind = execution.kind or self._context.kinds.find(row.kind)
        return Facts(
            attempt=row.attempt,
            max_attempts=row.max_attempts,
            age_seconds=row.age_seconds,
            cancel_requested=row.cancel_requested,
            error_code=row.error_code,
            error_detail=row.error_detail,
            policy=_DEFAULT_POLICY if kind is None else kind.retry,
        )

    # -- many given back -------------------------------------------------------------------

    @staticmethod
    def _seize(execution: Execution) -> bool:
        """Keep the threads from starting it; False when one already has."""
        with execution.lock:
            if execution.phase != CLAIMED:
                return False
            execution.phase = ENDED
            return True

    def _give_back_group(self, executions: Sequence[Execution]) -> list[Execution]:
        """Give back in one transaction; returns those whose rows say something else."""
        dialect = self._context.db.dialect
        by_id = {execution.task.id: execution for execution in executions}
        owners = sorted({execution.owner for execution in executions})

        def work(cursor: Any) -> list[TaskRow]:
            locked = rows.lock(cursor, dialect, list(by_id))
            ours = [
                row
                for row in locked.values()
                if row.is_held_by(by_id[row.id].owner, by_id[row.id].fence)
                and not row.cancel_requested
            ]
            if ours:
                ids = [row.id for row in ours]
                text = dialect.sql_ids(statements.GIVE_BACK, ids=len(ids), owners=len(owners))
                cursor.execute(text, [*ids, *owners])
                verdict = Verdict(outcome="given_back", state=State.PENDING, detail="not started")
                add_events(
                    cursor,
                    dialect,
                    [_event(row, verdict, row.attempt) for row in ours if self._has_events(row)],
                )
            return ours

        given = self._context.db.run(work)
        announce(self._context, given)
        done = {row.id for row in given}
        for execution in executions:
            if execution.task.id in done:
                self._report(execution, Verdict(outcome="given_back", state=State.PENDING))
        return [execution for execution in executions if execution.task.id not in done]

    def _has_events(self, row: TaskRow) -> bool:
        kind = self._context.kinds.find(row.kind)
        return kind is not None and kind.events

    # -- the end ---------------------------------------------------------------------------

    def _report(self, execution: Execution, verdict: Verdict) -> None:
        seconds = monotonic() - (execution.started_at or execution.claimed_at)
        self._context.signals.emit(
            Ended(
                execution.task.queue,
                execution.task.kind,
                verdict.outcome,
                final=verdict.state in (State.FAILED, State.CANCELLED),
                seconds=(seconds,),
            )
        )
        self._leave(execution, verdict.outcome)

    def _leave(self, execution: Execution, outcome: str) -> None:
        execution.outcome = outcome
        execution.phase = ENDED
        self._context.executions.remove(execution)

    def _log_error(self, execution: Execution, error: BaseException) -> None:
        # What was raised on purpose is an answer; everything else is a surprise with a traceback.
        known = isinstance(error, BloxError)
        write = _log.info if known else _log.error
        write(
            "handler_raised",
            task_id=execution.task.id,
            kind=execution.task.kind,
            attempt=execution.task.attempt + 1,
            error=f"{type(error).__name__}: {error}",
            exc_info=None if known else error,
        )


def _event(row: TaskRow, verdict: Verdict, attempt: int) -> tuple[int, str, str]:
    names = {"snooze": "snoozed"}
    data = {
        "from": row.state.value,
        "to": verdict.state.value,
        "attempt": attempt,
        "wait_seconds": round(verdict.wait_seconds, 6),
        "code": verdict.code,
        "detail": clean_text(verdict.detail),
    }
    if verdict.resource is not None:
        data["resource"] = verdict.resource
    return row.id, names.get(verdict.outcome, verdict.outcome), json.dumps(data)
