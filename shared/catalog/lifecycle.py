"""How long content is kept: a bucket's rules, and what a caller says of one object. Pure."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.catalog.models.base import MAX_KEY_BYTES
from shared.core.errors import InvalidError

#: What no database's clock could hold would be a time that never comes.
MAX_DAYS = 36_500
_DAY_SECONDS = 86_400.0


class ExpiryRule(BaseModel):
    """Keys that begin so are deleted so long after they were written."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prefix: str = Field("", max_length=MAX_KEY_BYTES, description="Empty: every key.")
    after_days: int | None = Field(None, ge=1, le=MAX_DAYS)
    after_seconds: float | None = Field(None, gt=0, le=MAX_DAYS * _DAY_SECONDS)

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        if (self.after_days is None) == (self.after_seconds is None):
            raise ValueError("a rule has either after_days or after_seconds")
        try:
            size = len(self.prefix.encode())
        except UnicodeEncodeError as error:
            raise ValueError("the prefix is not valid Unicode") from error
        if size > MAX_KEY_BYTES:
            raise ValueError(f"a prefix has at most {MAX_KEY_BYTES} bytes of UTF-8")
        return self

    @property
    def seconds(self) -> float:
        """How long after the write."""
        if self.after_seconds is not None:
            return self.after_seconds
        return (self.after_days or 0) * _DAY_SECONDS


class Lifecycle(BaseModel):
    """The rules of a bucket; of those that fit a key, the earliest counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: list[ExpiryRule] = Field(default_factory=list, max_length=100)

    @property
    def revision(self) -> str:
        """A name for exactly these rules: 32 hexadecimal digits."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def due(self, key: str, written_at: dt.datetime) -> dt.datetime | None:
        """Return when a key that was written then is to be deleted, None for never."""
        times = [rule.seconds for rule in self.rules if key.startswith(rule.prefix)]
        return written_at + dt.timedelta(seconds=min(times)) if times else None


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When one object is to be deleted, as its writer says: at a time, or so long after it.

    One that is kept from another version counts as it is, even when it is over.
    """

    at: dt.datetime | None = None
    seconds: float | None = None
    is_kept: bool = False

    @property
    def is_asked_for(self) -> bool:
        """Tell whether somebody asks for a deletion by this, rather than keeps what was asked."""
        return not self.is_kept and (self.at is not None or self.seconds is not None)

    def end(self, now: dt.datetime) -> dt.datetime | None:
        """Return the end as naive UTC, None for none.

        Raises InvalidError (`expiry_invalid`) for both, for what is over, and for what is too far.
        """
        if self.is_kept:
            return self.at
        if self.at is not None and self.seconds is not None:
            raise _invalid("an object expires either at a time or after some seconds")
        if self.seconds is not None:
            if not 0 < self.seconds <= MAX_DAYS * _DAY_SECONDS:
                raise _invalid(f"an object expires within {MAX_DAYS} days")
            return now + dt.timedelta(seconds=self.seconds)
        if self.at is None:
            return None
        if not now < self.at <= now + dt.timedelta(days=MAX_DAYS):
            raise _invalid(f"an object expires in the future, within {MAX_DAYS} days")
        return self.at


#: No time of its own: only the bucket's rules count.
UNTIMED = Lifetime()


def earlier(one: dt.datetime | None, other: dt.datetime | None) -> dt.datetime | None:
    """Return the earlier of two times, of which either may be never."""
    times = [moment for moment in (one, other) if moment is not None]
    return min(times) if times else None


def _invalid(sentence: str) -> InvalidError:
    return InvalidError(sentence, code="expiry_invalid")
