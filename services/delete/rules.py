"""What a delete task does with its blob, and when a place that fails is tried again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

#: A place that keeps failing is asked again after this, doubling, up to the cap.
FIRST_WAIT_SECONDS = 30.0
#: No deletion waits longer than this for its next try.
LONGEST_WAIT_SECONDS = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Parked:
    """Locations that failed: how many, and seconds until the first of them is due again."""

    count: int
    due_in_seconds: float


def wait_after_failures(tries: int) -> float:
    """Return the seconds until a location is tried again that has failed `tries` times."""
    if tries < 1:
        raise ValueError("failures are counted from 1")
    return float(min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** min(tries - 1, 30)))


def snooze_seconds(parked: Parked) -> float:
    """Return how long a task waits whose locations are parked: until the first is due."""
    return min(LONGEST_WAIT_SECONDS, max(1.0, parked.due_in_seconds))
