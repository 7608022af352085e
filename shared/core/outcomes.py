"""What a handler may answer instead of finishing. Expected outcomes are values; only surprises raise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again, counting an attempt.

    `after_seconds` None leaves the wait to the kind's retry policy.
    """

    after_seconds: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Snooze:
    """Come back later without counting an attempt: throttled, or waiting for something."""

    after_seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Fail:
    """End as failed: no further try can help. `code` is a short stable word, `detail` free text."""

    code: str
    detail: str = ""
