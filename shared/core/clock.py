"""Time: a monotonic clock that also runs while the machine is suspended, and deadlines on it."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Callable

#: CLOCK_BOOTTIME counts suspended time, so that a lease is never believed longer than it lives.
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def monotonic() -> float:
    """Return seconds on a clock that never goes back and does not stop in suspend."""
    if _BOOTTIME is None:
        return time.monotonic()
    return time.clock_gettime(_BOOTTIME)


def utc_now() -> dt.datetime:
    """Return the local idea of UTC, naive, as the tables hold it. Leases use the database's."""
    return dt.datetime.now(dt.UTC).replace(tzinfo=None)


class Deadline:
    """The moment by which a call must have answered; several limits combine into the earliest."""

    __slots__ = ("_at", "_clock")

    def __init__(
        self, seconds: float = math.inf, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._clock = clock
        self._at = clock() + seconds

    def remaining(self, at_most: float = math.inf) -> float:
        """Return the seconds left, never negative and never more than `at_most`."""
        return max(0.0, min(at_most, self._at - self._clock()))

    def expired(self) -> bool:
        """Tell whether no time is left."""
        return self._clock() >= self._at

    def within(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and `seconds` from now."""
        other = Deadline(seconds, clock=self._clock)
        return self if self._at <= other._at else other
