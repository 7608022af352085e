"""Ending what turned out to be cancelled when its completion was to be written.

A thread of its own does it: domain rows may be locked for long, and nobody else's completion waits
for that.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from shared.core.errors import CancelRequested
from shared.outbox.execution import Execution

#: Writes another answer than "completed".
Settle = Callable[[Execution, BaseException], None]


class Cancelled:
    """Owns the thread; `settle` never raises and lets each execution go."""

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._queue: queue.SimpleQueue[Execution | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="outbox-cancelled", daemon=True)
        self._thread.start()

    def put(self, execution: Execution) -> None:
        """Take one over; inline it is ended at once."""
        if self._thread is None:
            self._end(execution)
        else:
            self._queue.put(execution)

    def close(self, seconds: float) -> bool:
        """End the thread; False when it was not done within `seconds`."""
        if self._thread is None:
            return True
        self._queue.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (execution := self._queue.get()) is not None:
            self._end(execution)

    def _end(self, execution: Execution) -> None:
        self._settle(execution, CancelRequested("cancelled before the handler's end"))
