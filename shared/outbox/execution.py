"""One execution of one task in this process: what the handler holds in its hand.

It knows its owner and fence, when its lease ends on the local clock, and why it must stop.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.core.clock import Deadline, monotonic
from shared.core.errors import InvalidError, LeaseLost, StopError
from shared.outbox.records import json_text

if TYPE_CHECKING:
    import datetime as dt

    from sqlalchemy.orm import Session

    from shared.outbox.completion import Completion
    from shared.outbox.kinds import Kind

#: Phases of an execution. Only `running` may be interrupted from outside.
CLAIMED, RUNNING, SETTLING, ENDED = "claimed", "running", "settling", "ended"

#: Takes the domain rows that a transaction will change, before the task row (lock order).
Lock = Callable[["Session"], None]


@dataclass(frozen=True, slots=True)
class TaskView:
    """What the claim read of the row. Times are naive UTC on the database's clock."""

    id: int
    queue: str
    region: str
    kind: str
    tenant_id: str
    payload: str
    checkpoint: dict[str, Any] | None
    progress: int
    attempt: int
    max_attempts: int
    recoveries: int
    crashes: int
    parent_id: int | None
    trace_parent: str | None
    created_at: dt.datetime


class Execution:
    """A claimed task in this process.

    Handlers use `task`, `check`, `wait`, `checkpoint`, `emit`, `complete`, `shielded`, `deadline`
    and `idempotency_key`; the rest belongs to the outbox.
    """

    __slots__ = (
        "_guards",
        "_ports",
        "_shields",
        "_stop_event",
        "attempt_started",
        "claimed_at",
        "completed",
        "deadline",
        "dispatch_id",
        "fence",
        "kind",
        "lease_ends",
        "lock",
        "outcome",
        "owner",
        "phase",
        "renew_until",
        "result",
        "slots",
        "started_at",
        "stop_at",
        "stop_error",
        "task",
        "thread_id",
    )

    def __init__(
        self,
        ports: ExecutionPorts,
        *,
        task: TaskView,
        kind: Kind[Any] | None,
        owner: str,
        fence: int,
        dispatch_id: str,
        lease_ends: float,
        slots: Mapping[str, str] | None = None,
    ) -> None:
        self._ports = ports
        self.task = task
        self.kind = kind
        self.owner = owner
        self.fence = fence
        self.dispatch_id = dispatch_id
        #: Local monotonic time after which another may own the task. Renewals move it.
        self.lease_ends = lease_ends
        #: Local monotonic time after which nobody renews the lease: what hangs must come loose.
        self.renew_until = math.inf
        #: Places on resources that it holds or that are reserved for it. Replaced, never changed.
        self.slots: Mapping[str, str] = slots or {}
        self.lock = threading.Lock()
        self.phase = CLAIMED
        self.claimed_at = monotonic()
        self.started_at = 0.0
        self.attempt_started: dt.datetime | None = None
        self.thread_id = 0
        self.stop_error: StopError | None = None
        self.stop_at = 0.0
        self.completed = False
        #: What it ended as, for signals; and what the handler returned, for the row.
        self.outcome = ""
        self.result: dict[str, Any] | None = None
        self.deadline = Deadline()
        self._shields = 0
        self._guards: tuple[Callable[[], None], ...] = ()
        self._stop_event: threading.Event | None = None

    # -- what a handler uses ---------------------------------------------------------------

    @property
    def idempotency_key(self) -> str:
        """A key for outside suppliers: the same over all tries of this task."""
        return f"{self._ports.namespace}-task-{self.task.id}"

    @property
    def must_stop(self) -> bool:
        """Tell whether `check` would raise."""
        return self.stop_error is not None or monotonic() >= self.lease_ends

    def check(self) -> None:
        """Raise the reason why this execution must stop, if there is one.

        Every loop that moves bytes asks once per part, at least once a second.
        """
        if self.stop_error is not None:
            raise self.stop_error
        if monotonic() >= self.lease_ends:
            raise LeaseLost("the lease ran out before it was renewed", task_id=self.task.id)
        for guard in self._guards:
            guard()

    @contextmanager
    def guarded(self, guard: Callable[[], None]) -> Iterator[None]:
        """Let `check` ask `guard` as well in the block: what it raises ends the work of the block.

        For those who hold something that the execution may have to give up while it waits.
        """
        before = self._guards
        self._guards = (*before, guard)
        try:
            yield
        finally:
            self._guards = before

    def wait(self, seconds: float) -> None:
        """Sleep, but wake and raise at once when the execution must stop."""
        with self.lock:
            event = self._stop_event
            if event is None:
                event = self._stop_event = threading.Event()
                if self.stop_error is not None:
                    event.set()
        end = Deadline(seconds)
        while True:
            self.check()
            left = end.remaining(at_most=max(0.0, self.lease_ends - monotonic()))
            if end.expired():
                return
            event.wait(left)

    def checkpoint(self, data: dict[str, Any], progress: int) -> None:
        """Keep `data` in the row, so that another worker goes on from it.

        `progress` is a number that only grows as work is really done; when it exceeds the highest
        ever kept, the count of lost leases starts anew. Fenced: raises LeaseLost, CancelRequested;
        InvalidError for data that is no JSON.
        """
        self.check()
        try:
            text = json_text(data)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidError(f"the checkpoint is not JSON: {error}") from error
        self._ports.save_checkpoint(self, text, progress)

    def emit(self, type: str, data: dict[str, Any]) -> None:  # noqa: A002 - the event's own word
        """Record a progress event of this task, in a short fenced transaction of its own."""
        self.check()
        self._ports.emit(self, type, data)

    def complete(self, lock: Sequence[Lock] = ()) -> AbstractContextManager[Completion]:
        """Open the one transaction that ends this task as completed.

        `lock` takes the domain rows in the order of the protocols; then the task row is locked and
        checked; the body runs its effects and enqueues what comes next; the end of the block
        commits it all, or nothing. Raises LeaseLost or CancelRequested when the task is no longer
        this execution's. No network calls inside.
        """
        return self._ports.complete(self, lock)

    def fenced(self, lock: Sequence[Lock] = ()) -> AbstractContextManager[Session]:
        """Open a transaction with the locks and checks of `complete`, after which the task runs on.

        For protocols with a step in the middle that must not happen twice: what it writes is
        committed only while the task is still this execution's. No network calls inside.
        """
        return self._ports.fenced(self, lock)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Keep the last-resort interrupt away from the block; `check` delivers it afterwards."""
        with self.lock:
            self._shields += 1
        try:
            yield
        finally:
            with self.lock:
                self._shields -= 1

    # -- what the outbox uses --------------------------------------------------------------

    @property
    def is_interruptible(self) -> bool:
        """Tell whether an exception may be set in the thread. Read it under `lock`."""
        return self.phase == RUNNING and self._shields == 0

    def stop(self, error: StopError) -> bool:
        """Ask the execution to stop; the first reason stays. Returns whether this was it."""
        with self.lock:
            if self.stop_error is not None or self.phase == ENDED:
                return False
            self.stop_error = error
            self.stop_at = monotonic()
            if self._stop_event is not None:
                self._stop_event.set()
            return True


class ExecutionPorts:
    """What an execution needs of its outbox. Implemented by the worker and by `testing`."""

    namespace: str = "blox"

    def save_checkpoint(self, execution: Execution, data: str, progress: int) -> None:
        """Keep a checkpoint, fenced."""
        raise NotImplementedError

    def emit(self, execution: Execution, type: str, data: dict[str, Any]) -> None:  # noqa: A002
        """Record a progress event, fenced."""
        raise NotImplementedError

    def complete(
        self, execution: Execution, lock: Sequence[Lock]
    ) -> AbstractContextManager[Completion]:
        """Open the completing transaction."""
        raise NotImplementedError

    def fenced(self, execution: Execution, lock: Sequence[Lock]) -> AbstractContextManager[Session]:
        """Open a fenced transaction that does not end the task."""
        raise NotImplementedError


class Executions:
    """The executions that this process holds, by task id. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_task: dict[int, Execution] = {}
        #: Those that have lost their task to a newer claim of this very process, and still run.
        self._displaced: set[Execution] = set()

    def add(self, executions: Sequence[Execution]) -> None:
        """Take in executions that a claim has just won."""
        with self._lock:
            for execution in executions:
                older = self._by_task.get(execution.task.id)
                if older is not None:
                    self._displaced.add(older)
                self._by_task[execution.task.id] = execution

    def remove(self, execution: Execution) -> bool:
        """Drop an execution; False when it is gone or another has taken its place."""
        with self._lock:
            if self._by_task.get(execution.task.id) is not execution:
                self._displaced.discard(execution)
                return False
            del self._by_task[execution.task.id]
            return True

    def start(self, task_id: int, dispatch_id: str, thread_id: int) -> Execution | None:
        """Hand an execution to the thread that will run it; None when it was given back."""
        with self._lock:
            execution = self._by_task.get(task_id)
        if execution is None or execution.dispatch_id != dispatch_id:
            return None
        with execution.lock:
            if execution.phase != CLAIMED:
                return None
            execution.phase = RUNNING
            execution.thread_id = thread_id
            execution.started_at = monotonic()
        return execution

    def snapshot(self) -> list[Execution]:
        """Return all executions held now."""
        with self._lock:
            return list(self._by_task.values())

    def all(self) -> list[Execution]:
        """Return these, and those whose place has been taken while they run."""
        with self._lock:
            return [*self._by_task.values(), *self._displaced]

    def find(self, task_id: int) -> Execution | None:
        """Return the execution of a task, None when this process holds none."""
        return self._by_task.get(task_id)

    def __len__(self) -> int:
        return len(self._by_task)
