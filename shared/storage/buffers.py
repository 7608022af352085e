"""Memory for the parts of transfers, used again while transfers run and given back after the last.

The kernel gives fresh memory page by page, which takes as long as reading a part from a network
next door.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Bytes that are kept for the next part at most, over all transfers of the process.
MOST_IDLE_BYTES = 32 * 1024 * 1024


class Buffers:
    """A few buffers that nobody uses just now. Thread-safe.

    What lies idle never adds to the most that was in use at once: where nothing fits, all of it
    goes before new memory comes.
    """

    def __init__(self, most_idle_bytes: int = MOST_IDLE_BYTES) -> None:
        self._most_idle_bytes = most_idle_bytes
        self._lock = threading.Lock()
        self._idle: list[bytearray] = []
        self._users = 0

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep buffers for the length of the block, and of all others like it."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._idle.clear()

    @contextmanager
    def take(self, length: int) -> Iterator[memoryview]:
        """Lend memory of that length, whatever it holds; it is another's after the block."""
        buffer = self._fitting(length)
        try:
            yield memoryview(buffer)[:length]
        finally:
            self._give(buffer)

    def idle_bytes(self) -> int:
        """Return how much lies idle."""
        with self._lock:
            return sum(map(len, self._idle))

    def _fitting(self, length: int) -> bytearray:
        with self._lock:
            fitting = [one for one in self._idle if len(one) >= length]
            if fitting:
                best = min(fitting, key=len)
                self._idle = [one for one in self._idle if one is not best]
                return best
            self._idle.clear()
        return bytearray(length)

    def _give(self, buffer: bytearray) -> None:
        with self._lock:
            kept = sum(map(len, self._idle)) + len(buffer)
            if self._users and kept <= self._most_idle_bytes:
                self._idle.append(buffer)
