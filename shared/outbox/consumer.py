"""The Dramatiq consumer of one queue: room, fetch, claim, hand out.

Fetching removes the message for good; from then on the row is the only record. What the claim
wins is handed to Dramatiq's worker threads one by one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import redis
import structlog
from dramatiq import Message
from dramatiq.broker import Consumer, MessageProxy

from shared.core.clock import monotonic
from shared.core.failpoints import failpoint
from shared.outbox.claim import Claimer
from shared.outbox.execution import CLAIMED, Execution
from shared.outbox.messages import decode
from shared.outbox.once import Outage
from shared.outbox.scripts import MAX_FETCH

if TYPE_CHECKING:
    from shared.outbox.broker import OutboxBroker

#: Seconds between looks while the consumer may not fetch (draining, isolated, no database).
_HOLD_SECONDS = 0.05
_AWAY_SECONDS = 0.25
#: Seconds without room after which it is looked whether messages wait for some.
_NO_ROOM_SECONDS = 0.25

_log = structlog.get_logger("outbox.consumer")


class OutboxConsumer(Consumer):
    """Iterated by one Dramatiq consumer thread; `ack` comes from the worker threads."""

    def __init__(self, broker: OutboxBroker, queue_name: str, timeout_seconds: float) -> None:
        self._broker = broker
        self._queue_name = queue_name
        self._timeout_seconds = timeout_seconds
        self._ready: deque[Message[None]] = deque()
        self._suspect: tuple[Execution, Message[None]] | None = None
        self._claimer = Claimer(broker.context, broker.ports, queue_name)
        self._event = broker.waker.event(queue_name)
        self._pause = threading.Event()
        #: Messages wait that there was no room for: this queue's turn comes before others' bulk.
        self._is_owed = False
        self._outage = Outage(_log, "fetch_redis")

    def __next__(self) -> MessageProxy | None:
        """Return the next claimed message, None after a while without one."""
        broker = self._broker
        broker.turned(self._queue_name)
        if self._ready:
            return MessageProxy(self._ready.popleft())
        if self._suspect is not None:
            return self._start_suspect()
        if broker.is_draining.is_set() or broker.quarantine.is_closed:
            self._pause.wait(_HOLD_SECONDS)
            return None
        if not self._claimer.is_database_up and not self._claimer.probe():
            self._pause.wait(_AWAY_SECONDS)
            return None
        patience = self._timeout_seconds if self._is_owed else _NO_ROOM_SECONDS
        room = broker.budget.take(self._queue_name, patience, is_owed=self._is_owed)
        if not room:
            self._is_owed = self._has_messages()
            return None
        self._event.clear()
        won = 0
        try:
            fetched = self._fetch(room)
            self._is_owed = len(fetched) == min(room, MAX_FETCH)
            if fetched:
                won = self._claim(fetched)
        finally:
            broker.budget.give(room - won)
        if self._ready:
            return MessageProxy(self._ready.popleft())
        if not fetched:
            broker.waker.want()
            self._event.wait(broker.context.settings.fetch_tick_seconds)
        return None

    def ack(self, message: MessageProxy) -> None:
        """Free the place: the message is gone since the fetch, and the row has its answer."""
        self._free()

    def nack(self, message: MessageProxy) -> None:
        """Free the place; the same as `ack`, since answers live in the row."""
        self._free()

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give back what no thread has started: the rows become pending again."""
        waiting: list[Message[None] | MessageProxy] = [*messages, *self._ready]
        if self._suspect is not None:
            waiting.append(self._suspect[1])
        self._ready.clear()
        self._suspect = None
        executions = [
            execution for message in waiting if (execution := self._find(message)) is not None
        ]
        if executions:
            self._broker.give_back(executions)
        self._broker.budget.give(len(waiting))

    def close(self) -> None:
        """Give back what is left and close the connection."""
        self.requeue([])
        self._claimer.close()

    def _free(self) -> None:
        if self._broker.budget.give(1):
            self._broker.waker.freed()

    def _find(self, message: Message[None] | MessageProxy) -> Execution | None:
        execution = self._broker.context.executions.find(int(message.kwargs["task_id"]))
        if execution is None or execution.dispatch_id != message.kwargs["dispatch_id"]:
            return None
        return execution

    def _fetch(self, room: int) -> list[Message[None]]:
        try:
            bodies = self._broker.context.scripts.fetch(self._queue_name, room)
        except redis.RedisError as error:
            # If the reply was lost after the script ran, the scan finds these messages gone.
            self._outage.away(queue=self._queue_name, error=str(error))
            self._pause.wait(_AWAY_SECONDS)
            return []
        self._outage.back(queue=self._queue_name)
        messages = []
        for body in bodies:
            try:
                messages.append(decode(body, self._queue_name))
            except (ValueError, KeyError, TypeError, OverflowError, AttributeError):
                _log.warning("message_unreadable", queue=self._queue_name, body=body[:200])
        if bodies:
            failpoint("fetch.after")
        return messages

    def _has_messages(self) -> bool:
        try:
            return self._broker.context.scripts.length(self._queue_name) > 0
        except redis.RedisError as error:
            self._outage.away(queue=self._queue_name, error=str(error))
            return False

    def _claim(self, messages: list[Message[None]]) -> int:
        claim = self._claimer.claim(messages, self._broker.is_draining)
        suspect, won = claim.suspect, len(claim.executions)
        if suspect is not None and not self._broker.quarantine.enter(suspect):
            # Another queue's suspect is being isolated here already.
            self._broker.give_back([suspect])
            won -= 1
        for execution, message in zip(claim.executions, claim.messages, strict=True):
            if execution is not suspect:
                self._ready.append(message)
            elif execution.phase == CLAIMED:
                self._suspect = (execution, message)
        return won

    def _start_suspect(self) -> MessageProxy | None:
        assert self._suspect is not None
        execution, message = self._suspect
        if self._broker.is_draining.is_set():
            self.requeue([])
            return None
        if not self._broker.quarantine.may_start(execution):
            self._pause.wait(_HOLD_SECONDS)
            return None
        self._suspect = None
        _log.warning(
            "suspect_started",
            task_id=execution.task.id,
            recoveries=execution.task.recoveries,
            waited_seconds=round(monotonic() - execution.claimed_at, 3),
        )
        return MessageProxy(message)
