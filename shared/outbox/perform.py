"""What a worker thread does with one claimed task: find the handler, run it, and see to the answer.

This is the body of every Dramatiq actor. No middleware decides anything: an exception in a hook is
swallowed by Dramatiq, and the actor would run all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from shared.core.clock import Deadline, monotonic
from shared.core.errors import PermanentError
from shared.core.outcomes import Fail, Retry, Snooze
from shared.outbox.context import OutboxContext
from shared.outbox.execution import ENDED, RUNNING, SETTLING, Execution
from shared.outbox.kinds import PAYLOAD_NEWER, Handler, Kind
from shared.outbox.parking import Parking
from shared.outbox.stopping import Interrupted
from shared.outbox.verdicts import parked_on

#: Seconds until a task is looked at again that no handler here knows.
UNKNOWN_KIND_SECONDS = 30.0
#: Seconds until a task is looked at again whose payload only a newer worker can read.
NEWER_PAYLOAD_SECONDS = 5.0

_log = structlog.get_logger("outbox.worker")

#: Writes every answer but "completed".
Settle = Callable[[Execution, Any], None]


class Finishes(Protocol):
    """Where executions go whose handlers have done all they had to do."""

    def submit(self, execution: Execution) -> None:
        """Take over completing it."""


class Performer:
    """Runs claimed tasks for one process."""

    def __init__(
        self,
        context: OutboxContext,
        *,
        finisher: Finishes,
        settle: Settle,
        measure: Callable[[str, float], None],
    ) -> None:
        self._context = context
        self._finisher = finisher
        self._settle = settle
        self._measure = measure

    @property
    def busy(self) -> int:
        """Return how many threads run a handler now."""
        return sum(execution.phase == RUNNING for execution in self._context.executions.snapshot())

    def perform(self, queue_name: str, task_id: int, dispatch_id: str) -> None:
        """Run the task claimed under this dispatch; returns when its answer is handed on."""
        execution = self._context.executions.start(int(task_id), dispatch_id, threading.get_ident())
        if execution is None:
            # Given back while it waited for a thread.
            return
        answer = self._run(execution)
        self._measure(queue_name, monotonic() - execution.started_at)
        if execution.slots:
            # Woken for a place that it did not use. Before its row may be woken for another.
            parked = parked_on(answer)
            broken = parked[0] if parked is not None and parked[1] > 0 else None
            Parking(self._context).give_up(execution.slots, broken=broken)
        if execution.completed and not isinstance(answer, BaseException):
            self._leave(execution)
        elif answer is None or isinstance(answer, dict):
            execution.result = answer
            self._finisher.submit(execution)
        else:
            self._settle(execution, answer)

    def _run(self, execution: Execution) -> Any:
        """Return the handler's answer, or the exception that it ended with."""
        kind = execution.kind
        handler = None if kind is None else self._context.kinds.handler(kind.name)
        # Whatever hangs from here on: the handler, a transaction, the writing of the answer.
        limit = 0.0 if kind is None else kind.time_limit_seconds
        grace = 2 * self._context.settings.lease_seconds
        execution.renew_until = execution.started_at + limit + grace
        if kind is None or handler is None:
            execution.phase = SETTLING
            _log.error("kind_unknown", kind=execution.task.kind, task_id=execution.task.id)
            return Snooze(UNKNOWN_KIND_SECONDS, "no handler for this kind here")
        if execution.deadline.remaining() > kind.time_limit_seconds:
            execution.deadline = Deadline(kind.time_limit_seconds)
        try:
            try:
                # Cancelled or lost while it waited for this thread.
                execution.check()
                answer: Any = _call(handler, kind, execution)
            except Interrupted:
                answer = execution.stop_error
            except BaseException as error:
                # SystemExit too: an execution without an answer would be renewed for ever.
                answer = error
            self._settling(execution)
        except Interrupted:
            # It arrived between the handler's end and the change of phase.
            self._settling(execution)
            answer = execution.stop_error
        if isinstance(answer, Interrupted) or answer is execution.stop_error is not None:
            return execution.stop_error
        if answer is None or isinstance(answer, (dict, Retry, Snooze, Fail, BaseException)):
            return answer
        return TypeError(
            f"handler of {kind.name} returned {type(answer).__name__}; "
            "it may return None, a dict, Retry, Snooze or Fail"
        )

    @staticmethod
    def _settling(execution: Execution) -> None:
        with execution.lock:
            if execution.phase == RUNNING:
                execution.phase = SETTLING
        if execution.stop_error is not None:
            # An interrupt set just before is delivered within these few turns, not later.
            for _ in range(64):
                pass

    def _leave(self, execution: Execution) -> None:
        execution.phase = ENDED
        self._context.executions.remove(execution)


def _call(handler: Handler, kind: Kind[Any], execution: Execution) -> Any:
    try:
        payload = kind.load(execution.task.payload)
    except PermanentError as error:
        if error.code != PAYLOAD_NEWER:
            raise
        # While a new release is rolled out, old and new processes run beside each other.
        _log.warning("payload_newer", kind=kind.name, task_id=execution.task.id)
        return Snooze(NEWER_PAYLOAD_SECONDS, "its payload is newer than the worker that got it")
    return handler(execution, payload)
