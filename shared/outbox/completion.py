"""`complete()`: the one fenced commit of domain effects, next tasks and the end of this one.

Domain rows first, then the task row; owner, fence, lease and cancel are checked before the first
effect. `fenced()` is the same without the end, for a step in the middle of a protocol.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import structlog
from sqlalchemy.orm import Session

from shared.core.clock import Deadline, monotonic
from shared.core.errors import (
    CancelRequested,
    LeaseLost,
    StopError,
    UnavailableError,
)
from shared.core.failpoints import failpoint
from shared.outbox import rows
from shared.outbox.context import OutboxContext
from shared.outbox.db import BusyError, cursor_of
from shared.outbox.ends import EnqueuePort
from shared.outbox.execution import Execution, Lock
from shared.outbox.records import add_event, add_events, progress_event, result_text
from shared.outbox.rows import TaskRow
from shared.outbox.signals import Ended, LeaseLossSeen
from shared.outbox.statements import end as statements
from shared.outbox.states import State
from shared.outbox.stopping import protected

#: Seconds between looks at a COMMIT that was not confirmed.
_LOOK_AGAIN_SECONDS = 0.1

_log = structlog.get_logger("outbox.completion")


class Completion:
    """What the body of `complete()` works with.

    `session` is the transaction; `result`, when set, is kept in the row.
    """

    def __init__(
        self, context: OutboxContext, enqueuer: EnqueuePort, execution: Execution, session: Session
    ) -> None:
        self.session = session
        self.result: Mapping[str, Any] | None = None
        self._context = context
        self._enqueuer = enqueuer
        self._task = execution.task

    def enqueue(self, kind: Any, payload: Any, **options: Any) -> Any:
        """Write a next task in this transaction: it exists exactly if this one completes.

        Tenant, trace and parent are this task's unless said otherwise.
        """
        options.setdefault("tenant_id", self._task.tenant_id)
        options.setdefault("trace_parent", self._task.trace_parent)
        options.setdefault("parent_id", self._task.id)
        return self._enqueuer.enqueue(self.session, kind, payload, **options)

    def emit(self, type: str, data: Mapping[str, Any]) -> None:  # noqa: A002 - the event's own word
        """Record a progress event in this transaction."""
        event = progress_event(self._task.id, type, data)
        cursor = cursor_of(self.session)
        try:
            add_events(cursor, self._context.db.dialect, [event])
        finally:
            cursor.close()


class Completions:
    """Opens fenced transactions for one process. Thread-safe."""

    def __init__(self, context: OutboxContext, enqueuer: EnqueuePort) -> None:
        self._context = context
        self._enqueuer = enqueuer
        self._dialect = context.db.dialect

    @contextmanager
    def open(self, execution: Execution, lock: Sequence[Lock] = ()) -> Iterator[Completion]:
        """Complete the task at the end of the block, or do nothing at all.

        Raises LeaseLost or CancelRequested before the block when the task is no longer this
        execution's, UnavailableError when the database is in the way, also after the block. An
        exception of the block undoes everything and leaves the execution running.
        """
        if execution.completed:
            raise RuntimeError("this task has been completed already")
        with protected(execution):
            limit = Deadline(self._context.settings.complete_seconds)
            with self._transaction() as session:
                row = self._begin(session, execution, lock, limit)
                completion = Completion(self._context, self._enqueuer, execution, session)
                yield completion
                self._check_time(limit, execution)
                self._write(session, row, execution, completion.result)
                self._commit(session, execution)
            # Nothing of it can be lost any more, whatever the handler still does.
            execution.completed = True
            execution.lease_ends = math.inf
            execution.outcome = "completed"
            seconds = monotonic() - execution.started_at
            task = execution.task
            self._context.signals.emit(
                Ended(task.queue, task.kind, "completed", final=True, seconds=(seconds,))
            )

    @contextmanager
    def fenced(self, execution: Execution, lock: Sequence[Lock] = ()) -> Iterator[Session]:
        """Commit what the block writes if the task is still this execution's, and let it run on.

        Raises as `open` does. When the answer to the COMMIT is lost, UnavailableError is raised and
        the next attempt finds out from the domain rows what was written.
        """
        if execution.completed:
            raise RuntimeError("this task has been completed already")
        with protected(execution):
            limit = Deadline(self._context.settings.complete_seconds)
            with self._transaction() as session:
                self._begin(session, execution, lock, limit)
                yield session
                self._check_time(limit, execution)
                session.flush()
                failpoint("fenced.before_commit")
                session.commit()

    # -- steps -----------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        """Give a Session that is rolled back unless the block commits it.

        A database in trouble comes out as UnavailableError, so that no deadlock reaches a handler
        as such and the retry policy sees what it is; as BusyError when nothing was written and the
        same transaction may be tried again.
        """
        db = self._context.db
        try:
            with Session(db.engine, expire_on_commit=False) as session:
                yield session
        except db.errors as error:
            if db.is_retryable(error):
                raise BusyError("the database is too busy", error=str(error)) from error
            if db.is_outage(error):
                raise UnavailableError("the database is in trouble", error=str(error)) from error
            raise

    def _begin(
        self, session: Session, execution: Execution, lock: Sequence[Lock], limit: Deadline
    ) -> TaskRow:
        """Take the locks and check the fence; repeated after a deadlock, as nothing is done yet."""
        db = self._context.db
        while True:
            try:
                for take in lock:
                    take(session)
                row = rows.lock_tasks(session, self._dialect, [execution.task.id]).get(
                    execution.task.id
                )
                self._check(row, execution)
                assert row is not None
                return row
            except db.errors as error:
                if not db.is_retryable(error) or limit.expired():
                    raise
                session.rollback()
                threading.Event().wait(random.uniform(0.001, 0.02))

    def _check(self, row: TaskRow | None, execution: Execution) -> None:
        if row is None or not row.is_held_by(execution.owner, execution.fence):
            raise self._stopped(execution, LeaseLost("the task is another's now"))
        if row.cancel_requested:
            if row.error_code == "superseded":
                raise self._stopped(execution, CancelRequested("superseded", code="superseded"))
            raise self._stopped(execution, CancelRequested("the task was cancelled"))

    def _stopped(self, execution: Execution, error: StopError) -> StopError:
        if execution.stop(error) and isinstance(error, LeaseLost):
            self._context.signals.emit(LeaseLossSeen(1))
        return error

    def _write(
        self,
        session: Session,
        row: TaskRow,
        execution: Execution,
        result: Mapping[str, Any] | None,
    ) -> None:
        session.flush()
        cursor = cursor_of(session)
        try:
            cursor.execute(
                self._dialect.sql(statements.COMPLETE),
                (
                    result_text(result, task_id=row.id),
                    row.id,
                    execution.owner,
                    execution.fence,
                ),
            )
            if cursor.rowcount != 1:
                raise self._stopped(execution, LeaseLost("the task changed under its lock"))
            data = {"from": "running", "to": "completed", "attempt": row.attempt + 1}
            add_event(cursor, self._dialect, row.id, "completed", data)
        finally:
            cursor.close()

    def _commit(self, session: Session, execution: Execution) -> None:
        failpoint("complete.before_commit")
        try:
            session.commit()
        except self._context.db.errors as error:
            with suppress(*self._context.db.errors):
                session.rollback()
            if not self._was_committed(execution):
                raise UnavailableError(
                    "the completion could not be committed", error=str(error)
                ) from error
            _log.info("commit_found_done", task_id=execution.task.id)
        failpoint("complete.after_commit")

    def _was_committed(self, execution: Execution) -> bool:
        """Look up a COMMIT whose answer was lost; the locking read waits for its outcome.

        Raises LeaseLost when that cannot be known before the lease ends.
        """
        db, task_id = self._context.db, execution.task.id
        while monotonic() < execution.lease_ends:
            try:
                found = db.run(lambda cursor: rows.lock(cursor, db.dialect, [task_id]), tries=1)
            except UnavailableError as error:
                _log.warning("commit_unknown", task_id=task_id, error=str(error))
                threading.Event().wait(_LOOK_AGAIN_SECONDS)
                continue
            row = found.get(task_id)
            return (
                row is not None
                and row.state is State.COMPLETED
                and (row.owner, row.fence) == (execution.owner, execution.fence)
            )
        raise self._stopped(execution, LeaseLost("whether it was committed is not known"))

    def _check_time(self, limit: Deadline, execution: Execution) -> None:
        if limit.expired():
            raise UnavailableError(
                "complete() took too long: no slow work inside",
                task_id=execution.task.id,
                limit_seconds=self._context.settings.complete_seconds,
            )
