"""What a caller may say of a task, and what no column, key or queue could hold."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

from shared.core.errors import InvalidError

PRIORITIES = range(4)
#: Seconds that a task may be put off for: a hundred years.
MAX_DELAY_SECONDS = 100 * 366 * 86400.0
MAX_ATTEMPTS = 100_000
_MAX_ID = 2**63 - 1

#: A region is part of names in Redis, where the queue's other keys end in the reserved words.
_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}\Z")
_RESERVED = frozenset({"msgs", "bell", "low", "dealt", "filler"})
_TRACE_LENGTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller may say of a task beside its kind and payload."""

    tenant_id: str = ""
    region: str = ""
    priority: int = 1
    delay_seconds: float = 0.0
    due_at: dt.datetime | None = None
    dedupe_key: str | None = None
    idempotency_key: str | None = None
    parent_id: int | None = None
    trace_parent: str | None = None
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        """Refuse what the columns could not hold."""
        if self.priority not in PRIORITIES:
            raise InvalidError(f"priority {self.priority} is not one of 0, 1, 2, 3")
        if not 0 <= self.delay_seconds <= MAX_DELAY_SECONDS:
            raise InvalidError("delay_seconds must be from 0 to a hundred years")
        if self.delay_seconds and self.due_at is not None:
            raise InvalidError("give delay_seconds or due_at, not both")
        for name in ("dedupe_key", "idempotency_key"):
            value = getattr(self, name)
            if value is not None:
                _check_key(name, value)
        if not self.tenant_id.isascii() or len(self.tenant_id) > 64 or self.tenant_id[-1:] == " ":
            raise InvalidError("tenant_id must be ASCII, at most 64 characters, the last no space")
        if self.region and (not _REGION.match(self.region) or self.region in _RESERVED):
            raise InvalidError(f"{self.region!r} cannot be a region: letters, digits, - and _")
        if self.parent_id is not None and not 0 < self.parent_id <= _MAX_ID:
            raise InvalidError("parent_id must be the id of a task")
        if self.max_attempts is not None and not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            raise InvalidError(f"max_attempts must be from 1 to {MAX_ATTEMPTS}")

    @property
    def trace(self) -> str | None:
        """Return the trace's context; one that does not fit is dropped rather than the task."""
        trace = self.trace_parent
        fits = trace is not None and len(trace) <= _TRACE_LENGTH and trace.isascii()
        return trace if fits else None


def _check_key(name: str, value: str) -> None:
    if not 1 <= len(value) <= 191:
        raise InvalidError(f"{name} must have 1 to 191 characters")
    if value[-1] == " ":
        # MySQL compares without the spaces at the end: two keys would be one.
        raise InvalidError(f"{name} must not end with a space")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidError(f"{name} is no text: {error}") from error
