"""How long a delete task sleeps. Pure."""

from __future__ import annotations

#: No delete task sleeps longer than this at a time.
LONGEST_WAIT_SECONDS = 6 * 3600.0
#: Keys that one transaction of a deletion by prefix ends: some tens of milliseconds of locks.
PAGE_KEYS = 50
#: Seconds between two reports of its progress.
REPORT_SECONDS = 2.0


def snooze_seconds(due_in_seconds: float) -> float:
    """Return how long a task waits for something that is due then: the grace, a parked location."""
    return min(LONGEST_WAIT_SECONDS, max(1.0, due_in_seconds))
