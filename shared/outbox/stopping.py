"""Stopping an execution that should not run on, in steps that become rougher.

First a token that the handler asks (`Execution.check`), always the fence, after some seconds one
exception set in its thread, and at last a process that is not live. The watchdog's thread does
this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog
from dramatiq.threading import Interrupt, raise_thread_exception

from shared.core.clock import monotonic
from shared.core.errors import LeaseLost, TimeLimitExceeded
from shared.outbox.context import OutboxContext
from shared.outbox.execution import CLAIMED, ENDED, RUNNING, SETTLING, Execution
from shared.outbox.quarantine import PATIENCE_SECONDS
from shared.outbox.signals import LeaseLossSeen

#: Seconds between looks at the executions of this process.
TICK_SECONDS = 0.25

_log = structlog.get_logger("outbox.stopping")

#: Makes the rows of executions that no thread has started pending again.
GiveBackMany = Callable[[Sequence[Execution]], None]


class Interrupted(Interrupt):
    """Set in the thread of a handler that did not stop by itself; it holds things by `with`."""


@contextmanager
def protected(execution: Execution) -> Iterator[None]:
    """Keep the interrupt out of the block. One that was on its way already is raised before it."""
    is_in = False
    try:
        with execution.lock:
            if execution.phase != RUNNING:
                raise RuntimeError(f"no transaction of its own in phase {execution.phase}")
            execution.phase, is_in = SETTLING, True
        # An exception set in this thread is raised at the next call, so not after this one.
        _let_pending_interrupts_through()
        yield
    finally:
        if is_in:
            with execution.lock:
                execution.phase = RUNNING


def _let_pending_interrupts_through() -> None:
    return


def lose(context: OutboxContext, execution: Execution) -> bool:
    """Stop an execution that no longer owns its task; False when it was stopped before.

    One that no thread has started is dropped at once.
    """
    is_first = execution.stop(LeaseLost("the lease was lost", task_id=execution.task.id))
    with execution.lock:
        is_unstarted = execution.phase == CLAIMED
        if is_unstarted:
            execution.phase = ENDED
    if is_unstarted:
        context.executions.remove(execution)
    return is_first


class Watchdog:
    """Watches the executions of one process from a thread of its own."""

    def __init__(self, context: OutboxContext, give_back: GiveBackMany) -> None:
        self._context = context
        self._give_back = give_back
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._interrupted: set[Execution] = set()
        self._is_live = True

    @property
    def is_live(self) -> bool:
        """Tell whether every execution that had to stop did so in time."""
        return self._is_live

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self.run, name="outbox-watchdog", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """End the thread; False when that took longer than `seconds`."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(seconds)
        return not self.is_alive()

    def is_alive(self) -> bool:
        """Tell whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def run(self) -> None:
        """Look at the executions until closed."""
        while not self._closing.wait(self._tick_seconds):
            try:
                self.run_once()
            except Exception:
                _log.exception("watchdog_turn_failed")

    def run_once(self) -> None:
        """Look at every execution once."""
        executions = self._context.executions.all()
        now = monotonic()
        self._stop_overdue(executions, now)
        self._interrupt(executions, now)
        stuck = [execution for execution in executions if self._is_stuck(execution, now)]
        if stuck and self._is_live:
            _log.error("executions_stuck", tasks=[execution.task.id for execution in stuck])
        self._is_live = not stuck
        unstarted = [execution for execution in executions if self._waits_too_long(execution, now)]
        if unstarted:
            _log.info("unstarted_given_back", count=len(unstarted))
            self._give_back(unstarted)

    @property
    def _tick_seconds(self) -> float:
        settings = self._context.settings
        return min(TICK_SECONDS, settings.renew_seconds / 4, settings.unstarted_seconds / 4)

    def _stop_overdue(self, executions: Sequence[Execution], now: float) -> None:
        lost = 0
        for execution in executions:
            if execution.stop_error is not None:
                continue
            if now >= execution.lease_ends:
                # Who settles finds out by the fence, and may just have written the end.
                lost += execution.phase != SETTLING and lose(self._context, execution)
            elif execution.phase == RUNNING and execution.deadline.expired():
                limit = None if execution.kind is None else execution.kind.time_limit_seconds
                execution.stop(TimeLimitExceeded("it ran past its time limit", limit_seconds=limit))
        if lost:
            self._context.signals.emit(LeaseLossSeen(lost))

    def _interrupt(self, executions: Sequence[Execution], now: float) -> None:
        self._interrupted.intersection_update(executions)
        patience = self._context.settings.interrupt_after_seconds
        for execution in executions:
            if execution.stop_error is None or now - execution.stop_at < patience:
                continue
            if execution in self._interrupted:
                continue
            # Under the lock the phase cannot change between the look and the exception.
            with execution.lock:
                if not execution.is_interruptible:
                    continue
                raise_thread_exception(  # type: ignore[no-untyped-call]
                    execution.thread_id, Interrupted
                )
            self._interrupted.add(execution)
            _log.warning(
                "execution_interrupted",
                task_id=execution.task.id,
                kind=execution.task.kind,
                reason=execution.stop_error.code,
            )

    def _is_stuck(self, execution: Execution, now: float) -> bool:
        patience = self._context.settings.dead_after_seconds
        if execution.phase == SETTLING:
            # In a transaction of its own, or being answered: tried while the lease lives, and no
            # longer. The lease is not renewed for ever.
            return now - execution.lease_ends >= patience
        is_asked = execution.phase == RUNNING and execution.stop_error is not None
        return is_asked and now - execution.stop_at >= patience

    def _waits_too_long(self, execution: Execution, now: float) -> bool:
        if execution.phase != CLAIMED:
            return False
        limit = self._context.settings.unstarted_seconds
        if execution.task.recoveries > 1:
            # A suspect waits until the process is empty.
            limit += PATIENCE_SECONDS
        return now - execution.claimed_at >= limit
