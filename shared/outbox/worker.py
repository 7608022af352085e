"""The consuming half of one process: Dramatiq's worker threads and those that look after them.

Started once per process, stopped in order: fetch nothing more, give back what has not started,
wait, interrupt and give back the rest, complete what is done, let go of the leases last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import dramatiq
import structlog

from shared.core.clock import Deadline
from shared.core.errors import ShuttingDown
from shared.outbox.answers import Answers
from shared.outbox.broker import OutboxBroker
from shared.outbox.budget import Budget
from shared.outbox.context import OutboxContext
from shared.outbox.execution import CLAIMED, RUNNING, Execution
from shared.outbox.finisher import Finisher
from shared.outbox.heartbeat import Heartbeat
from shared.outbox.perform import Performer
from shared.outbox.stopping import Watchdog
from shared.outbox.waker import BLOCK_SECONDS, SOCKET_MARGIN_SECONDS, Waker

#: Milliseconds after which Dramatiq's threads look whether they shall stop.
WORKER_TIMEOUT_MILLISECONDS = 1000
#: Seconds a consumer may take for one turn before the process counts as dead.
TURN_LIMIT_SECONDS = 75.0
#: Share of the time to drain after which running handlers are asked to stop.
_ASK_SHARE = 0.6

_log = structlog.get_logger("outbox.worker")


class Alive(Protocol):
    """Something with a thread of its own."""

    def is_alive(self) -> bool:
        """Tell whether the thread runs."""


class OutboxWorker:
    """Consumes queues with a number of threads. One per process."""

    def __init__(
        self,
        context: OutboxContext,
        broker: OutboxBroker,
        *,
        answers: Answers,
        heartbeat: Heartbeat,
        redis_url: str,
        threads: int,
        make_client: Callable[[str, float], Any],
    ) -> None:
        settings = context.settings
        self._context = context
        self._broker = broker
        self._answers = answers
        self._heartbeat = heartbeat
        self.threads = threads
        self.budget = Budget(
            threads=threads,
            ahead_seconds=settings.fetch_ahead_seconds,
            ahead_max=settings.fetch_ahead_max,
        )
        self._waker = Waker(
            client=make_client(redis_url, BLOCK_SECONDS + SOCKET_MARGIN_SECONDS),
            scripts=context.scripts,
            node=context.node,
            can_fetch=lambda: self.budget.is_free and not broker.quarantine.is_closed,
            on_own_bell=heartbeat.poke,
        )
        self._finisher = Finisher(context, answers.settle)
        self._watchdog = Watchdog(context, give_back=self._give_back_unstarted)
        self.performer = Performer(
            context,
            finisher=self._finisher,
            settle=answers.settle,
            measure=self.budget.measure,
        )
        broker.equip(budget=self.budget, waker=self._waker, give_back=answers.give_back)
        self._worker: dramatiq.Worker | None = None

    def start(self, queue_names: Sequence[str]) -> None:
        """Begin to consume these queues (names as in Redis, with their region)."""
        self._finisher.start()
        self._heartbeat.start()
        self._watchdog.start()
        for name in queue_names:
            self._broker.declare_queue(name)
            self._waker.event(name)
        self._waker.start()
        self._broker.emit_after("process_boot")
        self._worker = dramatiq.Worker(
            self._broker,
            queues=set(queue_names),
            worker_timeout=WORKER_TIMEOUT_MILLISECONDS,
            worker_threads=self.threads,
        )
        self._worker.start()

    @property
    def busy(self) -> int:
        """Return how many threads run a handler."""
        return self.performer.busy

    @property
    def is_draining(self) -> bool:
        """Tell whether the worker has begun to stop."""
        return self._broker.is_draining.is_set()

    def faults(self) -> list[str]:
        """Say why this process is not live; empty when it is. Looks at nothing but itself."""
        found: list[str] = []
        if self._worker is None:
            return found
        if not self.is_draining:
            alive = sum(thread.is_alive() for thread in self._worker.workers)
            if alive < self.threads:
                found.append(f"{self.threads - alive} of {self.threads} worker threads have died")
            turn = self._broker.oldest_turn_seconds()
            if turn > TURN_LIMIT_SECONDS:
                found.append(f"a consumer has not turned for {turn:.0f} s")
        parts: list[tuple[str, Alive]] = [
            ("finisher", self._finisher),
            ("heartbeat", self._heartbeat),
            ("watchdog", self._watchdog),
        ]
        if not self.is_draining:
            parts.append(("waker", self._waker))
        for name, part in parts:
            if not part.is_alive():
                found.append(f"the {name} thread has died")
        if not self._watchdog.is_live:
            found.append("an execution did not stop when it was interrupted")
        return found

    def stop_consuming(self) -> None:
        """Fetch nothing more and give back what no thread has started."""
        self._broker.drain()
        self._give_back_unstarted(
            [item for item in self._context.executions.snapshot() if item.phase == CLAIMED]
        )

    def drain(self, seconds: float) -> bool:
        """Wait for the executions, ask them to stop, give them back; True when none is left.

        The places of what was given back are freed by Dramatiq's threads, which find it gone.
        """
        self.stop_consuming()
        end = Deadline(seconds)
        ask = Deadline(seconds * _ASK_SHARE)
        tick = threading.Event()
        has_asked = False
        while len(self._context.executions) and not end.expired():
            if ask.expired() and not has_asked:
                has_asked = True
                self._ask_to_stop()
            tick.wait(0.02)
        return not len(self._context.executions)

    def close(self, seconds: float) -> bool:
        """Stop all threads; True when every one of them ended in time."""
        end = Deadline(seconds)
        if self._worker is None:
            return True
        self._worker.stop(timeout=int(end.remaining(at_most=seconds) * 500) + 1)
        left = self._context.executions.snapshot()
        if left:
            _log.warning("executions_left_behind", count=len(left))
        ok = self._finisher.close(max(0.1, end.remaining(seconds) / 2))
        ok = self._watchdog.close(max(0.1, end.remaining(1.0))) and ok
        ok = self._heartbeat.close(max(0.1, end.remaining(1.0))) and ok
        return self._waker.join(max(0.1, end.remaining(BLOCK_SECONDS + 1.0))) and ok

    def _ask_to_stop(self) -> None:
        running = [item for item in self._context.executions.snapshot() if item.phase == RUNNING]
        _log.info("executions_asked_to_stop", count=len(running))
        for execution in running:
            execution.stop(ShuttingDown("the process is stopping"))

    def _give_back_unstarted(self, executions: Sequence[Execution]) -> None:
        if executions:
            self._answers.give_back(list(executions))
