"""Runs the slow calls of a transfer in helper threads while the owner's thread stays awake.

A call into a channel may hang for as long as the network limits allow. The thread that owns the
execution must nevertheless learn within a second that it has to stop, and it alone may ask.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from shared.core.clock import Deadline, monotonic
from shared.storage.bandwidth import TokenBucket, wait_turn
from shared.storage.errors import DeadlinePassed

T = TypeVar("T")

#: Seconds between two questions whether to stop.
ASK_SECONDS = 0.5
#: Seconds that helpers get to notice that nobody waits for them any more.
LEAVE_SECONDS = 1.0
#: Seconds without a byte or an answer after which nothing is expected any more: a file system may
#: hang for ever, and a provider may need minutes to join a large upload.
STALL_SECONDS = 900.0


class Stalled(Exception):
    """Nothing moves: neither a byte nor an answer came for very long."""


class _Halted(Exception):
    """The owner has left; seen by helpers only."""


class Crew(Generic[T]):
    """Helper threads of one owner; use it as a context manager.

    On the way out helpers are told to halt: they notice between two chunks. One that hangs in the
    network is left behind (its thread is a daemon); what it still writes goes to a key of its own.
    """

    def __init__(
        self,
        *,
        check: Callable[[], None],
        deadline: Deadline,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self._check = check
        self._deadline = deadline
        self._stall_seconds = stall_seconds
        #: When something moved last, or will move at the latest.
        self._moved_at = monotonic()
        self._halt = threading.Event()
        self._done: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Crew[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._halt.set()
        patience = Deadline(LEAVE_SECONDS)
        for thread in self._threads:
            thread.join(patience.remaining())

    def start(self, job: Callable[[], T]) -> None:
        """Begin a job; asks the owner's `check` first."""
        self.ask()
        self._moves()
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._work, args=(job,), name="transfer", daemon=True)
        self._threads.append(thread)
        thread.start()

    def next_done(self) -> T:
        """Return the result of the next job that ends; raises its error, or what `check` raises.

        Raises Stalled when no job has moved for very long; it is left behind.
        """
        while True:
            try:
                result, error = self._done.get(timeout=self._deadline.remaining(ASK_SECONDS))
            except queue.Empty:
                self.ask()
                if monotonic() - self._moved_at > self._stall_seconds:
                    raise Stalled from None
                continue
            self._moves()
            if error is not None:
                self._check()  # When both ended it, the reason to stop is the one to tell.
                raise error
            return result  # type: ignore[return-value]

    def run(self, job: Callable[[], T]) -> T:
        """Begin a job and wait for it."""
        self.start(job)
        return self.next_done()

    def is_left(self) -> bool:
        """Tell helpers whether nobody waits for them any more."""
        return self._halt.is_set()

    def ask(self) -> None:
        """Ask `check`, then the deadline."""
        self._check()
        if self._deadline.expired():
            raise DeadlinePassed("no time left for the transfer")

    def pace(self, bucket: TokenBucket | None) -> Callable[[int], None]:
        """Return what jobs call before each chunk: waits for the bucket, ends with the owner."""

        def wait(seconds: float) -> None:
            self._moves(in_seconds=seconds)
            self._halt.wait(seconds)

        def pace(count: int) -> None:
            if not self._halt.is_set():
                self._moves()
                wait_turn(bucket, count, wait)
            if self._halt.is_set():
                raise _Halted

        return pace

    def _moves(self, *, in_seconds: float = 0.0) -> None:
        self._moved_at = max(self._moved_at, monotonic() + in_seconds)

    def _work(self, job: Callable[[], T]) -> None:
        try:
            self._done.put((job(), None))
        except BaseException as error:
            self._done.put((None, error))
