"""How many executions one process may hold: one budget, shared by all its queues.

For tasks of seconds that is its idle threads; for tasks of milliseconds it claims the work of a few
dozen milliseconds ahead, so that one transaction claims many.
"""

from __future__ import annotations

import threading

from shared.core.clock import monotonic

#: Of tasks shorter than this a claim waits for half of the threads to be idle ...
QUICK_SECONDS = 0.005
#: ... but no longer than this: the others may have something longer in hand.
GATHER_SECONDS = 0.01
#: Weight of the newest measurement in the running mean of execution times.
_NEWEST = 0.2


class Budget:
    """Places for executions. Thread-safe."""

    def __init__(self, *, threads: int, ahead_seconds: float, ahead_max: int) -> None:
        self.threads = threads
        self._ahead_seconds = ahead_seconds
        self._ahead_max = ahead_max
        self._condition = threading.Condition()
        self._held = 0
        #: Queues that have messages and wait for room, the one whose turn it is first.
        self._turns: list[str] = []
        self._means: dict[str, float] = {}

    @property
    def held(self) -> int:
        """Return the executions claimed and not yet over."""
        return self._held

    @property
    def is_free(self) -> bool:
        """Tell whether a thread is idle."""
        return self._held < self.threads

    @property
    def waiting(self) -> tuple[str, ...]:
        """Return the queues that wait for their turn, in order."""
        return tuple(self._turns)

    def ahead(self, queue_name: str) -> int:
        """Return how many executions of this queue each thread may have waiting behind it."""
        mean = self._means.get(queue_name)
        if mean is None or self._ahead_max == 0:
            return 0
        return min(self._ahead_max, int(self._ahead_seconds / max(mean, 1e-6)))

    def take(self, queue_name: str, timeout_seconds: float, *, is_owed: bool = False) -> int:
        """Take all places that this queue may have now, waiting for some to become free.

        Returns 0 when none did. Small dribbles are not handed out while much is in hand: a claim
        of one costs as much as a claim of fifty. A queue that `is_owed` a turn, since messages wait
        for it, gets the next places that idle threads leave; the others take nothing before. So a
        queue of quick tasks, whose bulk in hand always exceeds the threads, starves none of slow
        ones.
        """
        begin = monotonic()
        end = begin + timeout_seconds
        with self._condition:
            if is_owed:
                self._turns.append(queue_name)
            try:
                while True:
                    now = monotonic()
                    gathering = begin + GATHER_SECONDS - now
                    room = self._room(queue_name, is_gathering=gathering > 0)
                    if room:
                        self._held += room
                        return room
                    if now >= end:
                        return 0
                    left = end - now
                    self._condition.wait(min(left, gathering) if gathering > 0 else left)
            finally:
                if is_owed:
                    self._turns.remove(queue_name)
                    if self._turns:
                        self._condition.notify_all()

    def _room(self, queue_name: str, *, is_gathering: bool) -> int:
        if self._turns and self._turns[0] != queue_name:
            return 0
        total = self.threads * (1 + self.ahead(queue_name))
        room = total - self._held
        if total > self.threads:
            worthwhile = total // 2
        elif is_gathering and self._means.get(queue_name, QUICK_SECONDS) < QUICK_SECONDS:
            worthwhile = self.threads // 2
        else:
            worthwhile = 1
        worthwhile = max(1, worthwhile)
        return room if room >= worthwhile else 0

    def give(self, count: int) -> bool:
        """Give places back; tells whether a thread has become idle with it."""
        if not count:
            return False
        with self._condition:
            was_free = self.is_free
            self._held -= count
            self._condition.notify_all()
            return self.is_free and not was_free

    def measure(self, queue_name: str, seconds: float) -> None:
        """Take the time of one execution into the queue's mean."""
        mean = self._means.get(queue_name)
        self._means[queue_name] = seconds if mean is None else mean + _NEWEST * (seconds - mean)

    def means(self) -> dict[str, float]:
        """Return the mean execution time by queue, in seconds."""
        return dict(self._means)
