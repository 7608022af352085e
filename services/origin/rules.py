"""Which source is asked next, and what an answer means. Pure: no I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any, Literal

#: The longest patience that an origin can ask for.
MAX_PATIENCE_SECONDS = 900.0

_STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e]*"\Z')
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})\Z")


@dataclass(frozen=True, slots=True)
class Partial:
    """What the kept stretches belong to: a source, and the strong ETag and size of its answer."""

    source: int
    etag: str
    total: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What the checkpoint keeps: tries counted per source before each call, and what has come.

    `barred` sources will not help, however often they are asked. `attempt` and `is_spent` tell a
    manual retry, which starts the counts anew, from an ordinary one.
    """

    tries: Mapping[int, int] = field(default_factory=dict)
    barred: frozenset[int] = frozenset()
    partial: Partial | None = None
    attempt: int = 0
    is_spent: bool = False

    @classmethod
    def load(cls, checkpoint: Mapping[str, Any] | None, *, attempt: int) -> Plan:
        """Read a checkpoint; `attempt` is the task's count of answers now."""
        if not checkpoint:
            return cls(attempt=attempt)
        partial = checkpoint.get("partial")
        kept = Partial(**partial) if partial else None
        if bool(checkpoint.get("spent")) or attempt < int(checkpoint["attempt"]):
            return cls(attempt=attempt, partial=kept)
        return cls(
            tries={int(number): int(count) for number, count in checkpoint["tries"].items()},
            barred=frozenset(checkpoint["barred"]),
            partial=kept,
            attempt=attempt,
        )

    def dump(self) -> dict[str, Any]:
        """Return the checkpoint's JSON."""
        partial = self.partial
        return {
            "tries": {str(number): count for number, count in self.tries.items()},
            "barred": sorted(self.barred),
            "attempt": self.attempt,
            "spent": self.is_spent,
            "partial": None
            if partial is None
            else {"source": partial.source, "etag": partial.etag, "total": partial.total},
        }

    def begun(self, source: int) -> Plan:
        """Return the plan with one more try of a source."""
        return replace(self, tries={**self.tries, source: self.tries.get(source, 0) + 1})

    def uncounted(self, source: int) -> Plan:
        """Return the plan without the last try, which was not the source's fault."""
        return replace(self, tries={**self.tries, source: max(0, self.tries.get(source, 0) - 1)})

    def without(self, source: int) -> Plan:
        """Return the plan that asks a source no more."""
        return replace(self, barred=self.barred | {source})

    def with_partial(self, partial: Partial | None) -> Plan:
        """Return the plan with what the kept stretches belong to."""
        return replace(self, partial=partial)

    def spent(self) -> Plan:
        """Return the plan after the last try of the last source."""
        return replace(self, is_spent=True)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A source as it stands now; `opens_in_seconds` says when it may be asked, if not now."""

    number: int
    opens_in_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Use:
    """Ask this source."""

    source: int


@dataclass(frozen=True, slots=True)
class WaitForHost:
    """All that is left are sources whose host is left alone for a while, or busy: uncounted."""

    source: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TryLater:
    """Every source failed in this execution, some have tries left: one answer, then back-off."""


@dataclass(frozen=True, slots=True)
class AllSpent:
    """No source has a try left."""


Choice = Use | WaitForHost | TryLater | AllSpent


def choose(
    candidates: Sequence[Candidate],
    plan: Plan,
    *,
    failed_now: AbstractSet[int],
    tries_per_source: int,
) -> Choice:
    """Choose among a rule's sources, given in its order. One that has begun goes on first."""
    left = [
        one
        for one in candidates
        if one.number not in plan.barred and plan.tries.get(one.number, 0) < tries_per_source
    ]
    if not left:
        return AllSpent()
    usable = [
        one.number for one in left if one.opens_in_seconds <= 0 and one.number not in failed_now
    ]
    if usable:
        begun = None if plan.partial is None else plan.partial.source
        return Use(begun if begun is not None and begun in usable else usable[0])
    if any(one.opens_in_seconds <= 0 for one in left):
        return TryLater()
    first = min(left, key=lambda one: one.opens_in_seconds)
    return WaitForHost(first.number, first.opens_in_seconds)


Meaning = Literal["store", "append", "restart", "missing", "denied", "busy", "broken", "error"]


def judge(
    status: int, headers: Mapping[str, str], *, partial: Partial | None, start: int
) -> Meaning:
    """Say what an answer means; `partial` and `start` are what a Range was asked for, if one was.

    `append` only with the same strong ETag and exactly the range that was asked for.
    """
    if status == 200:
        return "store"
    if status == 206 and partial is not None:
        return "append" if _continues(headers, partial, start) else "restart"
    if status == 416 and partial is not None:
        return "restart"
    if status in (404, 410):
        return "missing"
    if status in (401, 403):
        return "denied"
    if status == 429 or (status == 503 and "retry-after" in headers):
        return "busy"
    return "broken" if 500 <= status <= 599 else "error"


def range_bytes(headers: Mapping[str, str]) -> int | None:
    """Return how many bytes an answer's Content-Range names, None without a usable one."""
    match = _CONTENT_RANGE.match(headers.get("content-range", ""))
    return None if match is None else int(match[2]) - int(match[1]) + 1


def strong_etag(headers: Mapping[str, str]) -> str | None:
    """Return an ETag that proves the same bytes, None when there is none."""
    etag = headers.get("etag", "")
    return etag if len(etag) <= 512 and _STRONG_ETAG.match(etag) else None


def patience_seconds(headers: Mapping[str, str], *, now: float) -> float | None:
    """Return the seconds of a Retry-After, capped; None when it says nothing usable.

    `now` is the time of day as a Unix time, for those who name a date.
    """
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return min(MAX_PATIENCE_SECONDS, float(text))
    try:
        seconds = parsedate_to_datetime(text).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return None
    return min(MAX_PATIENCE_SECONDS, max(0.0, seconds))


def _continues(headers: Mapping[str, str], partial: Partial, start: int) -> bool:
    match = _CONTENT_RANGE.match(headers.get("content-range", ""))
    if match is None or strong_etag(headers) != partial.etag:
        return False
    first, last, total = (int(part) for part in match.groups())
    return first == start and last == total - 1 and partial.total in (None, total)
