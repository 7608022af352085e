"""When an object expires, as requests say it and answers show it. Pure."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping

from pydantic import Field

from services.api.views import OrderBody, to_naive_utc
from shared.catalog.lifecycle import Lifetime
from shared.core.errors import InvalidError

EXPIRES_AT, EXPIRES_IN = "x-blox-expires-at", "x-blox-expires-in"


class Expires(OrderBody):
    """When an object is to be deleted: at a time, or so long from now. Neither: by rule only."""

    expires_at: dt.datetime | None = None
    expires_in_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)

    @property
    def lifetime(self) -> Lifetime:
        """What the catalogue is told."""
        return Lifetime(at=to_naive_utc(self.expires_at), seconds=self.expires_in_seconds)


def parse_lifetime(headers: Mapping[str, str]) -> Lifetime:
    """Read the two headers of a PUT. Raises InvalidError (`expiry_invalid`) for what is no time."""
    at, seconds = headers.get(EXPIRES_AT), headers.get(EXPIRES_IN)
    if at is not None and seconds is not None:
        raise _invalid("an object expires either at a time or after some seconds")
    if at is not None:
        return Lifetime(at=_time(at))
    return Lifetime() if seconds is None else Lifetime(seconds=_seconds(seconds))


def expiry_header(moment: dt.datetime | None) -> dict[str, str]:
    """Return the header that shows when an object expires, none for never."""
    if moment is None:
        return {}
    return {EXPIRES_AT: moment.isoformat(timespec="seconds") + "Z"}


def _time(text: str) -> dt.datetime:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise _invalid(f"{EXPIRES_AT} is a time like 2031-12-31T23:59:59Z") from error
    if moment.tzinfo is None:
        raise _invalid(f"{EXPIRES_AT} names no zone: end it with Z for UTC")
    naive = to_naive_utc(moment)
    if naive is None:
        raise AssertionError("a time stays a time")
    return naive


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError as error:
        raise _invalid(f"{EXPIRES_IN} is a number of seconds") from error
    if not math.isfinite(seconds) or seconds <= 0:
        raise _invalid(f"{EXPIRES_IN} is more than 0 seconds")
    return seconds


def _invalid(sentence: str) -> InvalidError:
    return InvalidError(sentence, code="expiry_invalid")
