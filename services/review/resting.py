"""Reviewers elsewhere that did not answer are left alone for a while, for all tenants' sake.

Kept in this process only. While one has a rest its reviews sleep without an attempt, so that a
reviewer that hangs takes the threads of few.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.core.clock import monotonic
from shared.core.errors import StopError, UnavailableError
from shared.storage.breaker import Breaker
from shared.storage.errors import BreakerOpen

#: Failures in a row after which a reviewer has a rest.
FAILURES = 3
REST_SECONDS = 30.0
#: Reviewers that are remembered; the one that was not asked for the longest time is forgotten.
_MOST = 1000


class Resting(Exception):
    """Another question has just begun to try whether it is well again."""

    def __init__(self, seconds: float) -> None:
        super().__init__("it has a rest")
        self.seconds = seconds


class Rests:
    """Who has a rest. Thread-safe."""

    def __init__(
        self,
        *,
        failures: int = FAILURES,
        rest_seconds: float = REST_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._failures, self._rest_seconds, self._clock = failures, rest_seconds, clock
        self._lock = threading.Lock()
        self._breakers: OrderedDict[tuple[str, str], Breaker] = OrderedDict()

    def seconds(self, reviewer: tuple[str, str]) -> float:
        """Return the seconds until a (tenant, name) may be asked; 0 when it may now."""
        breaker = self._of(reviewer)
        return 0.0 if breaker.ready() else breaker.retry_after_seconds()

    @contextmanager
    def asked(self, reviewer: tuple[str, str]) -> Iterator[None]:
        """Report how a question went. Raises Resting."""
        breaker = self._of(reviewer)
        try:
            breaker.enter()
        except BreakerOpen as error:
            raise Resting(error.retry_after_seconds) from None
        try:
            yield
        except UnavailableError:
            breaker.failed()
            raise
        except StopError:
            breaker.unclear()
            raise
        except Exception:
            # It has answered, if only with a refusal.
            breaker.succeeded()
            raise
        except BaseException:
            breaker.unclear()
            raise
        breaker.succeeded()

    def _of(self, reviewer: tuple[str, str]) -> Breaker:
        with self._lock:
            breaker = self._breakers.pop(reviewer, None) or Breaker(
                reviewer[1],
                failures=self._failures,
                open_seconds=self._rest_seconds,
                clock=self._clock,
            )
            self._breakers[reviewer] = breaker
            while len(self._breakers) > _MOST:
                self._breakers.popitem(last=False)
            return breaker
