"""Deficit round robin over the tenants of one queue. Pure: no clock, no database.

A tenant with work waits at most until the others have used up what one turn gives them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping


class Ring:
    """Whose turn it is, and how much of it is left. Kept over the rounds of the filler.

    The tenant in front is served until its deficit is used up or it has nothing more; then the next
    one is. A new tenant joins at the end. Who has nothing loses its deficit.
    """

    def __init__(self) -> None:
        self._order: deque[str] = deque()
        self._weights: dict[str, int] = {}
        self._deficits: dict[str, int] = {}
        #: The tenant in front has been given its quantum for this turn.
        self._is_given = False
        self._quantum = 1

    def copy(self) -> Ring:
        """Return an independent copy, for a transaction that may be repeated."""
        other = Ring()
        other._order = self._order.copy()
        other._weights = self._weights
        other._deficits = self._deficits.copy()
        other._is_given = self._is_given
        other._quantum = self._quantum
        return other

    def __len__(self) -> int:
        return len(self._order)

    def begin(self, weights: Mapping[str, int], free: int) -> None:
        """Begin a round: these tenants have pending rows, and the window has this many places."""
        front = self._order[0] if self._order else None
        known = set(self._order)
        self._order = deque(tenant for tenant in self._order if tenant in weights)
        self._order.extend(sorted(tenant for tenant in weights if tenant not in known))
        self._deficits = {tenant: self._deficits.get(tenant, 0) for tenant in self._order}
        self._weights = dict(weights)
        self._is_given = self._is_given and front in weights
        self._quantum = max(1, free // max(1, len(self._order)))

    def turn(self) -> tuple[str, int] | None:
        """Return the tenant in front and how many rows it may bring now; None without tenants."""
        if not self._order:
            return None
        tenant = self._order[0]
        if not self._is_given:
            self._deficits[tenant] += self._quantum * self._weights[tenant]
            self._is_given = True
        return tenant, self._deficits[tenant]

    def took(self, count: int, *, is_empty: bool) -> None:
        """Note that the tenant in front brought so many rows, and whether it has no more."""
        tenant = self._order[0]
        self._deficits[tenant] -= count
        if is_empty:
            self._order.popleft()
            del self._deficits[tenant]
            self._is_given = False
        elif self._deficits[tenant] <= 0:
            self._order.rotate(-1)
            self._is_given = False
