"""How long a delete task sleeps. Pure."""

from __future__ import annotations

#: No delete task sleeps longer than this at a time.
LONGEST_WAIT_SECONDS = 6 * 3600.0


def snooze_seconds(due_in_seconds: float) -> float:
    """Return how long a task waits for something that is due then: the grace, a parked location."""
    return min(LONGEST_WAIT_SECONDS, max(1.0, due_in_seconds))
