"""Keeping the leases of this process, and what a running execution writes into its row.

One thread renews all leases together and learns which were lost or cancelled. A row that another
holds locked never holds up the others: it is tried again a second later.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog

from shared.core.clock import monotonic
from shared.core.errors import BloxError, CancelRequested, LeaseLost, StopError
from shared.core.failpoints import failpoint
from shared.outbox.context import OutboxContext
from shared.outbox.execution import ENDED, SETTLING, Execution
from shared.outbox.holders import renew_slots
from shared.outbox.records import add_events, progress_event
from shared.outbox.signals import LeaseLossSeen
from shared.outbox.statements import lease as statements
from shared.outbox.stopping import lose

#: Leases renewed in one transaction.
PAGE = 500
#: Seconds until rows that were locked, or a database that did not answer, are tried again.
AGAIN_SECONDS = 1.0

_log = structlog.get_logger("outbox.heartbeat")


class Heartbeat:
    """Renews the leases of one process from a thread of its own."""

    def __init__(self, context: OutboxContext) -> None:
        self._context = context
        self._line = context.db.line()
        self._wake = threading.Event()
        self._is_poked = False
        self._is_closing = False
        self._thread: threading.Thread | None = None

    # -- the thread ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self.run, name="outbox-heartbeat", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """End the thread; False when that took longer than `seconds`. Close it after all others."""
        self._is_closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(seconds)
        return not self.is_alive()

    def is_alive(self) -> bool:
        """Tell whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def poke(self) -> None:
        """Look for cancels now: this process's bell was rung."""
        self._is_poked = True
        self._wake.set()

    def run(self) -> None:
        """Renew every `renew_seconds`, what was left out after a second, until closed."""
        every = self._context.settings.renew_seconds
        again_seconds = min(AGAIN_SECONDS, every / 2)
        next_at, behind_at, behind = monotonic() + every, 0.0, set[Execution]()
        while True:
            at = min(next_at, behind_at) if behind else next_at
            self._wake.wait(max(0.0, at - monotonic()))
            self._wake.clear()
            if self._is_closing:
                break
            try:
                if self._is_poked:
                    self._is_poked = False
                    self.look()
                now = monotonic()
                if now >= next_at:
                    next_at, behind_at = now + every, now + again_seconds
                    behind = self.renew(self._context.executions.snapshot())
                elif behind and now >= behind_at:
                    behind_at = now + again_seconds
                    held = set(self._context.executions.snapshot())
                    behind = self.renew(behind & held)
            except Exception:
                _log.exception("heartbeat_turn_failed")
        self._line.close()

    # -- leases ----------------------------------------------------------------------------

    def renew(self, executions: Iterable[Execution]) -> set[Execution]:
        """Renew these leases now; returns those that could not be, to be tried again soon.

        Executions whose task was cancelled, or is another's now, are told to stop. Those that are
        far past their time limit are not renewed: they hang, and the task must go on elsewhere. Not
        for two threads at a time.
        """
        now = monotonic()
        mine = sorted(
            (
                item
                for item in executions
                if item.phase != ENDED and not item.completed and now < item.renew_until
            ),
            key=lambda item: item.task.id,
        )
        behind: set[Execution] = set()
        for start in range(0, len(mine), PAGE):
            page = mine[start : start + PAGE]
            try:
                behind |= self._renew_page(page)
            except BloxError as error:
                _log.warning("leases_not_renewed", count=len(page), error=str(error))
                behind.update(page)
        holders = [item for item in mine if item.slots]
        if holders:
            behind |= renew_slots(self._context, holders, line=self._line)
        return behind

    def look(self) -> None:
        """Find out, without locks, which executions were cancelled or lost."""
        mine = [item for item in self._context.executions.snapshot() if item.phase != ENDED]
        for start in range(0, len(mine), PAGE):
            try:
                self._look_page(mine[start : start + PAGE])
            except BloxError as error:
                _log.warning("cancels_not_seen", error=str(error))

    def _renew_page(self, page: Sequence[Execution]) -> set[Execution]:
        settings, dialect = self._context.settings, self._context.db.dialect
        by_id = {execution.task.id: execution for execution in page}
        ids = sorted(by_id)
        # Counted from before the statement is sent, so that we never believe it longer than it is.
        sent_at = monotonic()

        def work(cursor: Any) -> dict[int, Any]:
            cursor.execute(dialect.sql_ids(statements.LOCK_RUNNING, ids=len(ids)), ids)
            found = {int(row[0]): row for row in cursor.fetchall()}
            owned = [task_id for task_id, row in found.items() if _owns(by_id[task_id], row)]
            if owned:
                owners = sorted({by_id[task_id].owner for task_id in owned})
                cursor.execute(
                    dialect.sql_ids(statements.RENEW, ids=len(owned), owners=len(owners)),
                    [settings.lease_seconds, *owned, *owners],
                )
            return found

        failpoint("heartbeat.before")
        found = self._context.db.run(work, line=self._line)
        skipped = [execution for task_id, execution in by_id.items() if task_id not in found]
        for task_id, row in found.items():
            if _owns(by_id[task_id], row) and not by_id[task_id].completed:
                by_id[task_id].lease_ends = sent_at + settings.lease_seconds
        self._tell(by_id, found)
        if skipped:
            # Locked by another, or gone: a look tells the cancelled and the lost among them.
            self._look_page(skipped)
        return set(skipped)

    def _look_page(self, page: Sequence[Execution]) -> None:
        dialect = self._context.db.dialect
        by_id = {execution.task.id: execution for execution in page}
        ids = sorted(by_id)
        text = dialect.sql_ids(statements.LOOK_RUNNING, ids=len(ids))

        def work(cursor: Any) -> dict[int, Any]:
            cursor.execute(text, ids)
            return {int(row[0]): row for row in cursor.fetchall()}

        found: dict[int, Any] = dict.fromkeys(ids)
        found.update(self._context.db.run(work, line=self._line, read_only=True))
        self._tell(by_id, found)

    def _tell(self, by_id: Mapping[int, Execution], found: Mapping[int, Any]) -> None:
        """Stop the executions whose rows say so."""
        lost = 0
        for task_id, row in found.items():
            execution = by_id[task_id]
            if row is not None and _owns(execution, row):
                if row[5]:
                    execution.stop(_cancel_error(row[6], task_id))
                continue
            # Who is settling changes the row itself, and finds out by the fence. The phase is read
            # after the row: what this process wrote itself, it wrote in that phase.
            if execution.phase in (SETTLING, ENDED) or execution.completed:
                continue
            lost += lose(self._context, execution)
        if lost:
            _log.warning("leases_lost", count=lost)
            self._context.signals.emit(LeaseLossSeen(lost))

    # -- what a handler writes -------------------------------------------------------------

    def save_checkpoint(self, execution: Execution, data: str, progress: int) -> None:
        """Keep a checkpoint (JSON), fenced.

        Raises LeaseLost or CancelRequested, and UnavailableError when the database is in the way.
        """
        db = self._context.db
        values = (data, progress, progress, execution.task.id, execution.owner, execution.fence)

        def work(cursor: Any) -> bool:
            cursor.execute(db.dialect.sql(statements.SAVE_CHECKPOINT), values)
            return int(cursor.rowcount) == 1

        # The interrupt must not hit between a statement and its answer.
        with execution.shielded():
            failpoint("checkpoint.before")
            if not db.run(work):
                raise self.why(execution)
            failpoint("checkpoint.after")

    def emit(self, execution: Execution, type: str, data: Mapping[str, Any]) -> None:  # noqa: A002
        """Record a progress event, fenced, in a short transaction of its own. Raises as above."""
        db = self._context.db
        event = progress_event(execution.task.id, type, data)
        values = (execution.task.id, execution.owner, execution.fence)

        def work(cursor: Any) -> bool:
            cursor.execute(db.dialect.sql(statements.LOCK_OWN), values)
            if cursor.fetchone() is None:
                return False
            add_events(cursor, db.dialect, [event])
            return True

        with execution.shielded():
            if not db.run(work):
                raise self.why(execution)

    def why(self, execution: Execution) -> StopError:
        """Find out why a fenced write found no row, and stop the execution for it."""
        db, task_id = self._context.db, execution.task.id

        def work(cursor: Any) -> Any:
            cursor.execute(db.dialect.sql_ids(statements.LOOK_RUNNING, ids=1), [task_id])
            return cursor.fetchone()

        row = db.run(work, read_only=True)
        if row is not None and _owns(execution, row) and row[5]:
            error = _cancel_error(row[6], task_id)
            execution.stop(error)
            return error
        if lose(self._context, execution):
            self._context.signals.emit(LeaseLossSeen(1))
        return LeaseLost("the task is another's now", task_id=task_id)


def _owns(execution: Execution, row: Any) -> bool:
    """Tell whether a row of these statements says that the execution still owns its task."""
    return (
        row[1] == "running"
        and row[2] == execution.owner
        and int(row[3]) == execution.fence
        and bool(row[4])
    )


def _cancel_error(code: str | None, task_id: int) -> CancelRequested:
    if code == "superseded":
        return CancelRequested("superseded", code="superseded", task_id=task_id)
    return CancelRequested("the task was cancelled", task_id=task_id)
