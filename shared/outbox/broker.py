"""The Dramatiq broker of the outbox, on Dramatiq's public Broker and Consumer classes.

Dramatiq runs the threads; messages carry two ids; there are no delay queues, retries or results
of its own, since the task row decides about all of that.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dramatiq
from dramatiq.broker import Broker, Consumer

from shared.core.clock import monotonic
from shared.outbox.budget import Budget
from shared.outbox.consumer import OutboxConsumer
from shared.outbox.context import OutboxContext
from shared.outbox.execution import Execution, ExecutionPorts
from shared.outbox.quarantine import Quarantine
from shared.outbox.waker import Waker

if TYPE_CHECKING:
    from collections.abc import Callable

    from dramatiq import Message


class _Drain(dramatiq.Middleware):
    """Stops the fetching when a worker begins to stop: it joins its threads while consumers run."""

    def before_worker_shutdown(self, broker: Any, worker: Any) -> None:
        """Begin to drain."""
        broker.drain()


class OutboxBroker(Broker):
    """Consumes the queues of one outbox. Enqueueing goes through `Outbox.enqueue` instead."""

    def __init__(self, context: OutboxContext, ports: ExecutionPorts) -> None:
        # An explicit list: Dramatiq's retries, time limits and results are not for rows.
        super().__init__(middleware=[_Drain()])
        self.queues: dict[str, None] = {}
        self.context = context
        self.ports = ports
        self.is_draining = threading.Event()
        self.quarantine = Quarantine(context.executions)
        self._turns: dict[str, float] = {}
        self._give_back: Callable[[Sequence[Execution]], None] | None = None
        self._budget: Budget | None = None
        self._waker: Waker | None = None

    def equip(
        self,
        *,
        budget: Budget,
        waker: Waker,
        give_back: Callable[[Sequence[Execution]], None],
    ) -> None:
        """Hand over what consuming needs; producers have no use for it."""
        self._budget, self._waker, self._give_back = budget, waker, give_back

    @property
    def budget(self) -> Budget:
        """Return the process's budget."""
        if self._budget is None:
            raise RuntimeError("this outbox has no worker: call start_worker() before consuming")
        return self._budget

    @property
    def waker(self) -> Waker:
        """Return the process's waker."""
        if self._waker is None:
            raise RuntimeError("this outbox has no worker: call start_worker() before consuming")
        return self._waker

    def give_back(self, executions: Sequence[Execution]) -> None:
        """Make rows that no thread has started pending again."""
        if self._give_back is not None:
            self._give_back(executions)

    def turned(self, queue_name: str) -> None:
        """Note that this queue's consumer is alive; liveness reads it."""
        self._turns[queue_name] = monotonic()

    def oldest_turn_seconds(self) -> float:
        """Return how long ago the slowest consumer turned; 0 without consumers."""
        return monotonic() - min(self._turns.values()) if self._turns else 0.0

    def drain(self) -> None:
        """Fetch nothing more; wake whoever waits for something to fetch."""
        self.is_draining.set()
        if self._waker is not None:
            self._waker.stop()

    # -- dramatiq.Broker -------------------------------------------------------------------

    def declare_queue(self, queue_name: str) -> None:
        """Make a queue known. No delay queue: rows that are not due stay in the database."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> Consumer:
        """Return a consumer; `timeout` is in milliseconds, as Dramatiq counts."""
        return OutboxConsumer(self, queue_name, timeout / 1000)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Refuse: a message without a row would be work that nothing remembers."""
        raise RuntimeError(
            "send() does not work with an outbox: call outbox.enqueue(session, kind, payload)"
        )
