"""A limit on bytes per second, shared by all transfers of one channel in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable

from shared.core.clock import monotonic

#: Seconds of unused rate that may be caught up at once.
_BURST_SECONDS = 0.25
#: The smallest burst: one read of a socket or file should not have to wait on an idle line.
_LEAST_BURST_BYTES = 64 * 1024


class TokenBucket:
    """Fills at `bytes_per_second`; what is taken beyond its content is a debt to wait for.

    Pure but for a lock; the waiting is the caller's.
    """

    def __init__(self, bytes_per_second: float, *, clock: Callable[[], float] = monotonic) -> None:
        if bytes_per_second <= 0:
            raise ValueError("bytes_per_second must be positive")
        self._rate = bytes_per_second
        self._burst = max(_LEAST_BURST_BYTES, bytes_per_second * _BURST_SECONDS)
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = self._burst
        self._filled_at = clock()

    def take(self, count: int) -> float:
        """Take `count` bytes and return the seconds to wait before they may pass."""
        with self._lock:
            now = self._clock()
            gained = (now - self._filled_at) * self._rate
            self._tokens = min(self._burst, self._tokens + gained) - count
            self._filled_at = now
            return max(0.0, -self._tokens / self._rate)


def wait_turn(bucket: TokenBucket | None, count: int, wait: Callable[[float], object]) -> None:
    """Take `count` bytes and wait for them; `wait(seconds)` may return early and may raise."""
    if bucket is not None and (seconds := bucket.take(count)) > 0:
        wait(seconds)
