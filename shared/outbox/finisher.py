"""Completing what handlers have finished, many in one transaction.

The fence is checked for each row alone: rows that another holds locked are left to the next group,
rows that are not this execution's any more are left out. Nothing is completed that is not ours.
"""

from __future__ import annotations

import json
import math
import queue
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from shared.core.clock import Deadline, monotonic
from shared.core.errors import BloxError
from shared.core.failpoints import failpoint
from shared.outbox.cancelled import Cancelled, Settle
from shared.outbox.context import OutboxContext
from shared.outbox.db import TRIES
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
#: Seconds that a row locked by another is tried in groups before it is waited for alone; doubled
#: each time, since everything else waits meanwhile.
_PATIENCE_SECONDS = 2.0

_log = structlog.get_logger("outbox.finisher")


@dataclass(slots=True)
class _Member:
    """An execution to be completed, and from when on its row is waited for alone."""

    execution: Execution
    alone_at: float = math.inf
    patience_seconds: float = _PATIENCE_SECONDS


class Finisher:
    """Owns the thread. Each execution submitted leaves the table of executions in the end."""

    def __init__(self, context: OutboxContext, settle: Settle) -> None:
        self._context = context
        self._cancelled = Cancelled(settle)
        self._queue: queue.SimpleQueue[Execution | None] = queue.SimpleQueue()
        self._line = context.db.line()
        self._again: list[_Member] = []
        self._thread: threading.Thread | None = None
        self._room = threading.Event()
        self._room.set()

    def start(self) -> None:
        """Start the thread."""
        self._cancelled.start()
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
        self._again = [_Member(execution)]
        while self._again:
            group, self._again = self._again, []
            self._finish(group)

    def close(self, seconds: float) -> bool:
        """Complete what was submitted, then end; False when that took longer than `seconds`."""
        if self._thread is None:
            return True
        end = Deadline(seconds)
        self._queue.put(None)
        self._thread.join(seconds)
        return self._cancelled.close(end.remaining(seconds)) and not self._thread.is_alive()

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
                for member in group:
                    if member.execution.phase != ENDED:
                        self._leave(member.execution, "lost")
        self._line.close()

    def _collect(self, *, is_open: bool) -> tuple[list[_Member], bool]:
        group, self._again = self._again, []
        if group and not is_open:
            threading.Event().wait(_AWAY_SECONDS)
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
                    group.append(_Member(item))
                if len(group) >= GROUP or not is_open:
                    break
                item = self._queue.get_nowait()
        except queue.Empty:
            pass
        self._room.set()
        return group, is_open

    def _finish(self, group: list[_Member]) -> None:
        now = monotonic()
        together: list[_Member] = []
        waited: _Member | None = None
        for member in group:
            if now >= member.execution.lease_ends:
                self._lost(member.execution)
            elif waited is None and now >= member.alone_at:
                waited = member
            else:
                together.append(member)
        if together:
            self._try(together, wait_for_locks=False)
        if waited is not None:
            waited.patience_seconds *= 2
            waited.alone_at = math.inf
            self._try([waited], wait_for_locks=True)

    def _try(self, members: list[_Member], *, wait_for_locks: bool) -> None:
        batch = [member.execution for member in members]
        try:
            completed = self._commit(batch, wait_for_locks=wait_for_locks)
        except BloxError as error:
            _log.warning("finish_waits_for_database", count=len(batch), error=str(error))
            threading.Event().wait(_AWAY_SECONDS)
            completed = set()
        except Exception as error:
            _log.warning("finish_refused", count=len(batch), error=str(error))
            completed = self._one_by_one(batch)
        self._report([item for item in batch if item.task.id in completed])
        rest = [member for member in members if member.execution.phase != ENDED]
        if rest:
            self._look(rest)

    def _one_by_one(self, batch: Sequence[Execution]) -> set[int]:
        """Find the one that the database refuses: nobody may suffer for what another returned."""
        completed: set[int] = set()
        for execution in batch:
            try:
                try:
                    completed |= self._commit([execution], wait_for_locks=False)
                except BloxError:
                    raise
                except Exception as error:
                    if execution.result is None:
                        raise
                    # The work is done, only what it returned cannot be kept.
                    _log.warning("result_dropped", task_id=execution.task.id, error=str(error))
                    execution.result = None
                    completed |= self._commit([execution], wait_for_locks=False)
            except BloxError as error:
                _log.warning("finish_waits_for_database", count=1, error=str(error))
            except Exception:
                _log.exception("finish_failed", count=1)
                self._leave(execution, "lost")
        return completed

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

        tries = 1 if wait_for_locks else TRIES
        done = self._context.db.run(work, line=self._line, tries=tries)
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

    def _look(self, rest: Sequence[_Member]) -> None:
        """Find out why these were not completed: locked, cancelled, lost, or done after all."""
        ids = sorted(member.execution.task.id for member in rest)
        sql = self._context.db.dialect.sql_ids(statements.LOOK, ids=len(ids))

        def read(cursor: Any) -> dict[int, Any]:
            cursor.execute(sql, ids)
            return {int(row[0]): row for row in cursor.fetchall()}

        try:
            rows = self._context.db.run(read, line=self._line)
        except BloxError as error:
            _log.info("finish_look_failed", error=str(error))
            threading.Event().wait(_AWAY_SECONDS)
            self._again.extend(rest)
            return
        for member in rest:
            execution = member.execution
            row = rows.get(execution.task.id)
            is_ours = row is not None and (row[2], row[3]) == (execution.owner, execution.fence)
            if row is not None and is_ours and row[1] == "completed":
                # The COMMIT arrived although its answer did not.
                self._report([execution])
            elif row is not None and is_ours and row[1] == "running" and row[4]:
                self._cancelled.put(execution)
            elif row is not None and is_ours and row[1] == "running" and row[5]:
                alone_at = monotonic() + member.patience_seconds
                member.alone_at = min(member.alone_at, alone_at)
                self._again.append(member)
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
