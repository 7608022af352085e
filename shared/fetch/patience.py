"""How long each wait of an exchange goes on: in slices, between which the caller may stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shared.core.clock import Deadline
from shared.fetch.errors import FetchTimeout

#: Seconds between two questions whether to stop.
SLICE_SECONDS = 0.25


class Patience:
    """The caller's deadline and stop check, for every wait of one exchange."""

    def __init__(self, deadline: Deadline, check: Callable[[], None]) -> None:
        self._deadline = deadline
        self._check = check

    def within(self, seconds: float) -> Patience:
        """Return the same with an earlier end."""
        return Patience(self._deadline.within(seconds), self._check)

    def check(self) -> None:
        """Raise what the caller's check raises, or FetchTimeout when the time is over."""
        self._check()
        if self._deadline.expired():
            raise FetchTimeout("the exchange took too long", code="total_timeout")

    def slices(self, seconds: float, *, code: str, message: str) -> Iterator[float]:
        """Yield short times to wait for, until `seconds` are over; then raise FetchTimeout."""
        limit = self._deadline.within(seconds)
        while True:
            self.check()
            if limit.expired():
                raise FetchTimeout(message, code=code, limit_seconds=seconds)
            yield max(0.001, limit.remaining(SLICE_SECONDS))
