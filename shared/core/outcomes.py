"""What a handler may answer instead of finishing. Expected outcomes are values; surprises raise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again, counting an attempt.

    `after_seconds` None leaves the wait to the kind's retry policy.
    """

    after_seconds: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Snooze:
    """Come back later without counting an attempt: throttled, or waiting for something.

    One that waits for an event gives `ready`: called in the snooze's own transaction, it locks the
    event's row in the Session that it gets and tells whether the event has come already; then the
    task is pending at once, and no wake-up is lost.

    With a `resource` the task is parked on it: woken when a place there is given back
    (`after_seconds` 0: it is full), or at that time at the latest (it is broken).
    """

    after_seconds: float
    reason: str = ""
    ready: Callable[[Any], bool] | None = None
    resource: str | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """End as failed: no further try can help. `code` is a short stable word, `detail` free text."""

    code: str
    detail: str = ""
