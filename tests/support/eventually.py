"""The only way in which a test waits: for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    condition: Callable[[], T],
    timeout: float = 10.0,
    *,
    interval_seconds: float = 0.01,
    message: str = "",
) -> T:
    """Call `condition` until it returns something true and return that.

    An AssertionError inside it counts as not yet, and is the reason given when `timeout` seconds
    are over; any other exception goes through at once.
    """
    until = time.monotonic() + timeout
    last: object = None
    while True:
        cause: AssertionError | None = None
        try:
            value = condition()
            if value:
                return value
            last = value
        except AssertionError as error:
            cause = error
        if time.monotonic() > until:
            what = message or getattr(condition, "__qualname__", repr(condition))
            raise AssertionError(f"not within {timeout} s: {what}; last answer {last!r}") from cause
        time.sleep(interval_seconds)


def never(condition: Callable[[], object], during: float, *, message: str = "") -> None:
    """Assert that `condition` stays false for `during` seconds, asking often."""
    until = time.monotonic() + during
    while time.monotonic() < until:
        value = condition()
        if value:
            raise AssertionError(f"it happened: {message or condition!r}; answer {value!r}")
        time.sleep(0.01)
