"""The memory of bodies on their way to an object store, which all of one process share.

A body takes what it fills, little by little. When nothing is left it waits, in turn; the first who
waits may fill its part all the same, so that never all wait for each other. While some wait, a body
that has filled its part for too long is ended: slow senders do not keep the others out.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from shared.core.clock import monotonic
from shared.core.errors import UnavailableError

#: Bytes that a body takes at a time, or more if it needs them at once.
GRAIN_BYTES = 256 * 1024
#: Seconds in which a part should have come while others wait.
SLOW_SECONDS = 30.0
_TOO_SLOW = "the body came too slowly while others waited for memory"


class StagingBusy(UnavailableError):
    """Too many bodies are on their way into staging."""

    code = "busy"


class BodyTooSlow(StagingBusy):
    """Others waited for the memory that this body had filled too slowly."""

    code = "body_too_slow"


@dataclass(slots=True, eq=False)
class _Waiting:
    share: Share
    count: int
    since: float
    future: Future[None]


class Memory:
    """So many bytes for all bodies of a process, and one part more. Thread-safe."""

    def __init__(
        self,
        total_bytes: int,
        *,
        slow_seconds: float = SLOW_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._lock = threading.Lock()
        self._free = total_bytes
        #: How many may wait; beyond it waiting would only make the answer useless.
        self._most_waiting = max(1, total_bytes // GRAIN_BYTES)
        self._slow_seconds = slow_seconds
        self._clock = clock
        self._queue: deque[_Waiting] = deque()
        self._filling: dict[Share, float] = {}
        self._turn: Share | None = None

    def share(self, *, on_evicted: Callable[[], None]) -> Share:
        """Begin a body, which has nothing yet. Raises StagingBusy when too many wait already.

        `on_evicted` is called in another's thread when the body is ended for being too slow.
        """
        with self._lock:
            if len(self._queue) >= self._most_waiting:
                raise StagingBusy("too many bodies wait for memory")
        return Share(self, on_evicted)

    def ask(self, share: Share, count: int) -> Future[None] | None:
        """Take so many bytes; None when they were there, else what tells that they are now."""
        with self._lock:
            now = self._clock()
            if (self._free >= count and not self._queue) or self._turn is share:
                self._grant(share, count, now)
                return None
            waiting = _Waiting(share, count, now, Future())
            # Nobody can cancel it: what is granted belongs to the share.
            waiting.future.set_running_or_notify_cancel()
            self._queue.append(waiting)
            evicted = self._serve(now)
        _tell(evicted)
        return None if waiting.future.done() else waiting.future

    def force(self, share: Share, count: int) -> None:
        """Take so many bytes whether they are there or not."""
        with self._lock:
            self._grant(share, count, self._clock())

    def send(self, share: Share) -> int:
        """Let a part that is full be sent: it is not being filled any more; returns its bytes."""
        with self._lock:
            count, share.filling_bytes = share.filling_bytes, 0
            self._filling.pop(share, None)
            self._end_turn(share)
            evicted = self._serve(self._clock())
        _tell(evicted)
        return count

    def give(self, count: int) -> None:
        """Give back the bytes of a part that was sent."""
        with self._lock:
            self._free += count
            evicted = self._serve(self._clock())
        _tell(evicted)

    def close(self, share: Share) -> None:
        """Let a body go, with what it was filling; what is being sent is given back apart."""
        with self._lock:
            self._drop(share)
            evicted = self._serve(self._clock())
        _tell(evicted)

    def _grant(self, share: Share, count: int, since: float) -> None:
        self._free -= count
        share.filling_bytes += count
        self._filling.setdefault(share, since)

    def _serve(self, now: float) -> list[Share]:
        """Grant what there is, in turn; returns who was ended for it."""
        evicted: list[Share] = []
        while self._queue:
            first = self._queue[0]
            if self._free < first.count and self._turn is not None:
                slow = self._slowest(now)
                if slow is None:
                    break
                self._drop(slow)
                slow.is_evicted = True
                evicted.append(slow)
                continue
            if self._free < first.count:
                self._turn = first.share
            self._queue.popleft()
            self._grant(first.share, first.count, now)
            # What it waited is not its own slowness.
            self._filling[first.share] += min(now - first.since, now - self._filling[first.share])
            first.future.set_result(None)
        return evicted

    def _slowest(self, now: float) -> Share | None:
        waiting = {one.share for one in self._queue}
        slow = [
            (since, share)
            for share, since in self._filling.items()
            if share not in waiting and now - since >= self._slow_seconds
        ]
        return min(slow, key=lambda one: one[0])[1] if slow else None

    def _drop(self, share: Share) -> None:
        self._free += share.filling_bytes
        share.filling_bytes = 0
        self._filling.pop(share, None)
        self._end_turn(share)
        if any(one.share is share for one in self._queue):
            self._queue = deque(one for one in self._queue if one.share is not share)

    def _end_turn(self, share: Share) -> None:
        if self._turn is share:
            self._turn = None


class Share:
    """What one body has of the memory. For one thread at a time, apart from `sent`."""

    def __init__(self, memory: Memory, on_evicted: Callable[[], None]) -> None:
        self._memory = memory
        self.on_evicted = on_evicted
        #: Granted for the part that is being filled.
        self.filling_bytes = 0
        self.is_evicted = False
        self._asked: Future[None] | None = None

    def room(self, filled_bytes: int, count: int) -> Future[None] | None:
        """See that a part with `filled_bytes` may get `count` more; what to wait for, or None.

        Raises BodyTooSlow when the body was ended.
        """
        if self.is_evicted:
            raise BodyTooSlow(_TOO_SLOW)
        if self._asked is not None:
            if not self._asked.done():
                return self._asked
            self._asked = None
        missing = filled_bytes + count - self.filling_bytes
        if missing > 0:
            self._asked = self._memory.ask(self, max(missing, GRAIN_BYTES))
        return self._asked

    def cover(self, filled_bytes: int) -> None:
        """Take what a part with so many bytes lacks, without waiting: where a chunk is cut."""
        missing = filled_bytes - self.filling_bytes
        if missing > 0:
            self._memory.force(self, missing)

    def send(self) -> int:
        """Let the part be sent; returns the bytes that `sent` gives back. Raises BodyTooSlow."""
        count = self._memory.send(self)
        if self.is_evicted:
            raise BodyTooSlow(_TOO_SLOW)
        return count

    def sent(self, count: int) -> None:
        """Give back what a part had that was sent, from whatever thread."""
        self._memory.give(count)

    def close(self) -> None:
        """Let go of the part that was being filled, and of a place in the queue."""
        self._memory.close(self)


def _tell(evicted: list[Share]) -> None:
    """Outside of the lock: each drops its buffer."""
    for share in evicted:
        share.on_evicted()
