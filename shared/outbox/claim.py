"""Taking the execution leases of what was fetched, in one transaction.

A row is won when it still waits under the dispatch id of the message, or when it already runs under
this very claim (its commit was not confirmed). Every other row makes its message stale.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
from dramatiq import Message

from shared.core.clock import Deadline, monotonic
from shared.core.errors import UnavailableError
from shared.core.failpoints import failpoint
from shared.core.ids import new_id
from shared.outbox.context import OutboxContext
from shared.outbox.db import BusyError, Line
from shared.outbox.execution import Execution, ExecutionPorts, TaskView
from shared.outbox.records import add_events
from shared.outbox.signals import Claimed, StaleMessages
from shared.outbox.statements import claim as statements
from shared.outbox.states import State

#: Seconds between tries of a claim that the database did not answer.
_AGAIN_SECONDS = 0.1
#: A try that has waited for a lock longer than this was not refused by a deadlock.
_LONG_SECONDS = 1.0
#: A task that lost its lease this often in a row is suspected of killing its process.
SUSPECT_RECOVERIES = 1

_log = structlog.get_logger("outbox.claim")


@dataclass(slots=True)
class Claim:
    """What one claim won: executions with their messages, and the suspect among them."""

    executions: list[Execution] = field(default_factory=list)
    messages: list[Message[None]] = field(default_factory=list)
    suspect: Execution | None = None


class Claimer:
    """Claims for one consumer, on a connection of its own."""

    def __init__(self, context: OutboxContext, ports: ExecutionPorts, queue_name: str) -> None:
        self._context = context
        self._ports = ports
        self._queue_name = queue_name
        self._line: Line = context.db.line()
        #: False after a claim that the database did not answer: nothing is fetched until it does.
        self.is_database_up = True

    def probe(self) -> bool:
        """Ask the database whether it answers again."""
        self.is_database_up = self._line.wait_until_up(Deadline())
        return self.is_database_up

    def claim(self, messages: Sequence[Message[None]], is_stopping: threading.Event) -> Claim:
        """Claim the rows of these messages.

        Messages that could not be claimed in time are dropped: the scans bring their rows back. So
        are those whose row somebody keeps locked for long; the others do not wait for it.
        """
        by_id = {int(message.kwargs["task_id"]): message for message in messages}
        # Made before the first try, so that a row already running under it is known to be ours.
        owner = f"{self._context.node}:{new_id()[:16]}"
        patience = Deadline(self._context.settings.claim_patience_seconds)
        failpoint("claim.before")
        first_sent_at = monotonic()
        select = statements.SELECT
        while True:
            sent_at = monotonic()
            try:
                rows, taken, suspect = self._context.db.run(
                    partial(self._take, select=select, by_id=by_id, owner=owner),
                    line=self._line,
                    tries=1,
                )
                break
            except UnavailableError as error:
                has_waited = isinstance(error, BusyError) and monotonic() - sent_at > _LONG_SECONDS
                if has_waited and select is statements.SELECT and not is_stopping.is_set():
                    select = statements.SELECT_FREE
                    _log.warning("claim_leaves_locked", count=len(by_id), error=str(error))
                    continue
                if is_stopping.is_set() or patience.expired():
                    self.is_database_up = False
                    _log.warning("claim_given_up", count=len(by_id), error=str(error))
                    return Claim()
                is_stopping.wait(_AGAIN_SECONDS)
        failpoint("claim.after")
        self.is_database_up = True
        claim = Claim()
        lease_seconds = self._context.settings.lease_seconds
        waits: list[float] = []
        for row in rows:
            task_id = int(row[0])
            if task_id not in taken:
                continue
            message = by_id[task_id]
            # A row that ran already was won by an earlier try, and so is its lease.
            began = first_sent_at if row[1] == State.RUNNING.value else sent_at
            execution = self._execution(row, taken[task_id], owner, message, began + lease_seconds)
            claim.executions.append(execution)
            claim.messages.append(message)
            waits.append(max(0, row[19] or 0) / 1e6)
            if task_id == suspect:
                claim.suspect = execution
        self._context.executions.add(claim.executions)
        if waits:
            self._context.signals.emit(Claimed(self._queue_name, tuple(waits)))
        stale = (len(by_id) if select is statements.SELECT else len(rows)) - len(taken)
        if stale:
            self._context.signals.emit(StaleMessages(stale))
        return claim

    def close(self) -> None:
        """Give the connection back."""
        self._line.close()

    def _take(
        self, cursor: Any, *, select: str, by_id: dict[int, Message[None]], owner: str
    ) -> tuple[list[Any], dict[int, int], int | None]:
        """Lock, compare, update; returns the rows, the new fence by won id, and the suspect."""
        dialect, settings = self._context.db.dialect, self._context.settings
        ids = sorted(by_id)
        cursor.execute(dialect.sql_ids(select, ids=len(ids)), ids)
        rows = list(cursor.fetchall())
        won: dict[int, int] = {}
        waiting: list[Any] = []
        for row in rows:
            if row[1] == "running" and row[3] == owner:
                won[int(row[0])] = int(row[4])
            elif row[1] in ("dispatching", "dispatched") and row[2] == by_id[
                int(row[0])
            ].kwargs.get("dispatch_id"):
                waiting.append(row)
        mine = [row for row in rows if int(row[0]) in won]
        suspect = next(
            (int(row[0]) for row in (*mine, *waiting) if row[14] > SUSPECT_RECOVERIES), None
        )
        if suspect is not None:
            self._postpone(cursor, [row for row in waiting if int(row[0]) != suspect])
            waiting = [row for row in waiting if int(row[0]) == suspect]
        if waiting:
            take = sorted(int(row[0]) for row in waiting)
            cursor.execute(
                dialect.sql_ids(statements.TAKE, ids=len(take)),
                [owner, settings.lease_seconds, *take],
            )
            won.update({int(row[0]): int(row[4]) + 1 for row in waiting})
            self._record(cursor, waiting, State.RUNNING, owner=owner)
        return rows, won, suspect

    def _record(self, cursor: Any, moved: list[Any], target: State, **facts: object) -> None:
        """Record where rows of kinds that ask for it have just gone."""
        names = self._context.kinds.with_events()
        if not names:
            return
        events = [
            (
                int(row[0]),
                target.value,
                json.dumps({"from": row[1], "to": target.value, **facts}),
            )
            for row in moved
            if row[7] in names
        ]
        add_events(cursor, self._context.db.dialect, events)

    def _postpone(self, cursor: Any, rows: list[Any]) -> None:
        # One poison task must not take its neighbours with it when it kills this process.
        settings = self._context.settings
        text = self._context.db.dialect.sql(statements.POSTPONE)
        for row in rows:
            wait = random.uniform(settings.recovery_min_seconds, settings.recovery_max_seconds)
            cursor.execute(text, (wait, int(row[0]), row[2]))
        self._record(cursor, rows, State.SCHEDULED, detail="beside a suspect")

    def _execution(
        self, row: Any, fence: int, owner: str, message: Message[None], lease_ends: float
    ) -> Execution:
        to_time = self._context.db.dialect.to_time
        created_at = to_time(row[18])
        assert created_at is not None
        task = TaskView(
            id=int(row[0]),
            queue=row[5],
            region=row[6],
            kind=row[7],
            tenant_id=row[8],
            payload=row[9],
            checkpoint=json.loads(row[10]) if row[10] else None,
            progress=int(row[11]),
            attempt=int(row[12]),
            max_attempts=int(row[13]),
            recoveries=int(row[14]),
            crashes=int(row[15]),
            parent_id=row[16],
            trace_parent=row[17],
            created_at=created_at,
        )
        return Execution(
            self._ports,
            task=task,
            kind=self._context.kinds.find(task.kind),
            owner=owner,
            fence=fence,
            dispatch_id=str(message.kwargs["dispatch_id"]),
            lease_ends=lease_ends,
            slots=json.loads(row[20]) if row[20] else {},
        )
