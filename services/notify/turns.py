"""Keeps threads of this process free of addresses that are slow, for the deliveries of all others.

A few deliveries at a time go to one address, and to all of one tenant; where the address is in
doubt, one. Who finds no turn waits a moment where that helps, else its task waits without a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from shared.core.clock import Deadline, monotonic

#: An exchange that takes longer is not waited for.
SLOW_SECONDS = 0.5


class NoTurn(Exception):
    """As many as may are at it, and they are not quick."""


class Turns:
    """Thread-safe. One address gets half of the threads at most, a tenant three quarters."""

    def __init__(self, threads: int) -> None:
        self._most_address = max(1, threads // 2)
        self._most_tenant = max(1, threads - max(1, threads // 4))
        self._changed = threading.Condition()
        self._begun: dict[Hashable, list[float]] = {}

    @contextmanager
    def take(self, address: Hashable, tenant: Hashable, *, is_in_doubt: bool) -> Iterator[None]:
        """Have a turn for the length of the block. Raises NoTurn."""
        bounds = {("address", address): 1 if is_in_doubt else self._most_address}
        bounds[("tenant", tenant)] = self._most_tenant
        begun = self._enter(bounds)
        try:
            yield
        finally:
            self._leave(bounds, begun)

    def _enter(self, bounds: dict[tuple[str, Hashable], int]) -> float:
        deadline = Deadline(SLOW_SECONDS)
        with self._changed:
            while True:
                now = monotonic()
                full = [
                    times
                    for name, most in bounds.items()
                    if len(times := self._begun.get(name, [])) >= most
                ]
                if not full:
                    for name in bounds:
                        self._begun.setdefault(name, []).append(now)
                    return now
                if deadline.expired() or any(now - min(times) >= SLOW_SECONDS for times in full):
                    raise NoTurn
                self._changed.wait(deadline.remaining(SLOW_SECONDS))

    def _leave(self, bounds: dict[tuple[str, Hashable], int], begun: float) -> None:
        with self._changed:
            for name in bounds:
                times = self._begun[name]
                times.remove(begun)
                if not times:
                    del self._begun[name]
            self._changed.notify_all()
