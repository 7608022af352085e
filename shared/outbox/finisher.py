"""Completing what handlers have finished, many in one transaction.

The fence is checked for each row alone: rows that another holds locked are left to the next group,
rows that are not this execution's any more are left out. Nothing is completed that is not ours.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from shared.core.clock import monotonic
from shared.core.errors import BloxError, CancelRequested
from shared.core.failpoints import failpoint
from shared.outbox.context import OutboxContext
from shared.outbox.execution import ENDED, Execution
from shared.outbox.records import add_events, result_text
from shared.outbox.signals import Ended, LeaseLossSeen
from shared.outbox.statements import finish as statements

#: Executions in one transaction.
GROUP = 500
#: Executions that may wait before the worker threads are made to wait too.
MAX_WAITING = 4 * GROUP
#: Seconds between tries while the database is away.
_AWAY_SECONDS = 0.1
#: How often rows locked by another are tried in a group before they are taken one by one.
_GROUP_TRIES = 2

_log = structlog.get_logger("outbox.finisher")

#: Writes another answer than "completed": the row turned out to be cancelled.
Settle = Callable[[Execution, BaseException], None]


class Finisher:
    """Owns the thread. Each execution submitted leaves the table of executions in the end."""

    def __init__(self, context: OutboxContext, settle: Settle) -> None:
        self._context = context
        self._settle = settle
        self._queue: queue.SimpleQueue[Execution | None] = queue.SimpleQueue()
        self._line = context.db.line()
        self._again: list[tuple[Execution, int]] = []
        self._thread: threading.Thread | None = None
        self._room = threading.Event()
        self._room.set()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="outbox-finisher", daemon=True)
        self._thread.start()

    def submit(self, execution: Execution) -> None:
        """Take a finished execution; waits only when the database is far behind."""
        if self._queue.qsize() > MAX_WAITING:
            self._room.clear()
            self._room.wait(1.0)
        self._queue.put(execution)

    def finish_now(self, execution: Execution) -> None:
        """Complete one execution in the calling thread; for outboxes that run inline."""
        self._again = [(execution, 0)]
        while self._again:
            group, self._again = self._again, []
            self._finish(group)

    def close(self, seconds: float) -> bool:
        """Complete what was submitted, then end; False when that took longer than `seconds`."""
        if self._thread is None:
            return True
        self._queue.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def is_alive(self) -> bool:
        """Tell whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        is_open = True
        while is_open or self._again:
            group, is_open = self._collect(is_open=is_open)
            if not group:
                continue
            try:
                self._finish(group)
            except Exception:
                # Their leases are still renewed only while they are held here: let them go, and
                # the scan runs them again.
                _log.exception("finish_failed", count=len(group))
                for execution, _ in group:
                    self._leave(execution, "lost")
        self._line.close()

    def _collect(self, *, is_open: bool) -> tuple[list[tuple[Execution, int]], bool]:
        group, self._again = self._again, []
        try:
            item = (
                self._queue.get(timeout=_AWAY_SECONDS if group else None)
                if is_open
                else self._queue.get_nowait()
            )
            while True:
                if item is None:
                    is_open = False
                else:
                    group.append((item, 0))
                if len(group) >= GROUP or not is_open:
                    break
                item = self._queue.get_nowait()
        except queue.Empty:
            pass
        self._room.set()
        return group, is_open

    def _finish(self, group: list[tuple[Execution, int]]) -> None:
        live = []
        for execution, tries in group:
            if monotonic() >= execution.lease_ends:
                self._lost(execution)
            else:
                live.append((execution, tries))
        together = [execution for execution, tries in live if tries < _GROUP_TRIES]
        alone = [execution for execution, tries in live if tries >= _GROUP_TRIES]
        tries_of = {execution.task.id: tries for execution, tries in live}
        for batch in ([together] if together else []) + [[execution] for execution in alone]:
            try:
                completed = self._commit(batch, wait_for_locks=batch is not together)
            except BloxError as error:
                _log.warning("finish_waits_for_database", count=len(batch), error=str(error))
                threading.Event().wait(_AWAY_SECONDS)
                completed = set()
            self._report([item for item in batch if item.task.id in completed])
            rest = [item for item in batch if item.task.id not in completed]
            if rest:
                self._look(rest, tries_of)

    def _commit(self, batch: Sequence[Execution], *, wait_for_locks: bool) -> set[int]:
        """Complete those that are ready in one transaction; returns their task ids."""
        by_id = {execution.task.id: execution for execution in batch}
        ids = sorted(by_id)
        dialect = self._context.db.dialect
        select = dialect.sql_ids(statements.SELECT_READY, ids=len(ids))
        if wait_for_locks:
            select = select.replace(dialect.tokens["skip_locked"], dialect.tokens["for_update"])
        failpoint("finish.before")

        def work(cursor: Any) -> set[int]:
            cursor.execute(select, ids)
            ready = [
                int(row[0])
                for row in cursor.fetchall()
                if row[1] == by_id[int(row[0])].owner and row[2] == by_id[int(row[0])].fence
            ]
            if ready:
                self._write(cursor, [by_id[task_id] for task_id in ready])
            return set(ready)

        done = self._context.db.run(work, line=self._line)
        failpoint("finish.after")
        return done

    def _write(self, cursor: Any, ready: Sequence[Execution]) -> None:
        dialect = self._context.db.dialect
        for execution in ready:
            text = result_text(execution.result, task_id=execution.task.id)
            if text is not None:
                cursor.execute(
                    dialect.sql(statements.SET_RESULT),
                    (text, execution.task.id),
                )
        ids = [execution.task.id for execution in ready]
        cursor.execute(dialect.sql_ids(statements.COMPLETE, ids=len(ids)), ids)
        data = json.dumps({"from": "running", "to": "completed"})
        add_events(
            cursor,
            dialect,
            [
                (execution.task.id, "completed", data)
                for execution in ready
                if execution.kind is not None and execution.kind.events
            ],
        )

    def _look(self, rest: Sequence[Execution], tries_of: dict[int, int]) -> None:
        """Find out why these were not completed: locked, cancelled, lost, or done after all."""
        ids = sorted(execution.task.id for execution in rest)
        sql = self._context.db.dialect.sql_ids(statements.LOOK, ids=len(ids))

        def read(cursor: Any) -> dict[int, Any]:
            cursor.execute(sql, ids)
            return {int(row[0]): row for row in cursor.fetchall()}

        try:
            rows = self._context.db.run(read, line=self._line)
        except BloxError as error:
            _log.info("finish_look_failed", error=str(error))
            threading.Event().wait(_AWAY_SECONDS)
            self._again.extend((execution, tries_of[execution.task.id]) for execution in rest)
            return
        for execution in rest:
            row = rows.get(execution.task.id)
            is_ours = row is not None and (row[2], row[3]) == (execution.owner, execution.fence)
            if row is not None and is_ours and row[1] == "completed":
                # The COMMIT arrived although its answer did not.
                self._report([execution])
            elif row is not None and is_ours and row[1] == "running" and row[4]:
                self._settle(execution, CancelRequested("cancelled before the handler's end"))
            elif row is not None and is_ours and row[1] == "running" and row[5]:
                self._again.append((execution, tries_of[execution.task.id] + 1))
            else:
                self._lost(execution)

    def _report(self, executions: Sequence[Execution]) -> None:
        now = monotonic()
        by_kind: dict[tuple[str, str], list[float]] = defaultdict(list)
        for execution in executions:
            by_kind[execution.task.queue, execution.task.kind].append(now - execution.started_at)
            self._leave(execution, "completed")
        for (queue_name, kind), seconds in by_kind.items():
            self._context.signals.emit(
                Ended(queue_name, kind, "completed", final=True, seconds=tuple(seconds))
            )

    def _lost(self, execution: Execution) -> None:
        _log.warning("finish_lease_lost", task_id=execution.task.id, owner=execution.owner)
        self._context.signals.emit(LeaseLossSeen(1))
        self._leave(execution, "lost")

    def _leave(self, execution: Execution, outcome: str) -> None:
        execution.outcome = outcome
        execution.phase = ENDED
        self._context.executions.remove(execution)
