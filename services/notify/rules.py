"""What an answer of a receiver means. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

#: A receiver may ask for patience, but not for longer than this.
MOST_PATIENCE_SECONDS = 4 * 3600.0
_GONE, _TOO_MANY, _UNAVAILABLE = 410, 429, 503


class Meaning(Enum):
    """What to do after an answer."""

    ARRIVED = "arrived"
    AGAIN = "again"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an answer means; `after_seconds` None leaves the wait to the retry policy."""

    meaning: Meaning
    code: str
    after_seconds: float | None = None


def judge(status: int, retry_after: str | None) -> Verdict:
    """Judge an answer as Standard Webhooks has it: 2xx arrived, 410 gone, all else again."""
    if 200 <= status < 300:
        return Verdict(Meaning.ARRIVED, "")
    if status == _GONE:
        return Verdict(Meaning.GONE, "gone")
    wait = _seconds(retry_after) if status in (_TOO_MANY, _UNAVAILABLE) else None
    return Verdict(Meaning.AGAIN, f"status_{status}", wait)


def _seconds(text: str | None) -> float | None:
    # Dates are allowed there too; few send them, and the policy's own wait serves as well.
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return min(float(text), MOST_PATIENCE_SECONDS)
