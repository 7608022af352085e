"""A breaker: leaves a channel alone for a while after it failed several times in a row.

Pure but for a lock: it asks an injected clock and nothing else.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from shared.core.clock import monotonic
from shared.core.errors import BloxError, StopError
from shared.core.shares import SILENT_SECONDS
from shared.storage.errors import BreakerOpen, DeadlinePassed, SourceUnavailable, harms_channel

State = Literal["closed", "open", "half_open"]

#: Failures in a row after which a channel is left alone.
FAILURES = 5
#: Seconds until one call may try whether it is well again.
OPEN_SECONDS = 15.0
#: A call that ended sooner without an answer tells nothing of a silence.
SHORT_SECONDS = 0.5


class Breaker:
    """closed --(failures in a row)--> open --(time)--> half_open --(one call well)--> closed.

    Half open lets a single call pass; its failure opens the breaker anew. A call that never reports
    (its thread hangs) keeps the place for no longer than the breaker stays open.
    """

    def __init__(
        self,
        name: str,
        *,
        failures: int = FAILURES,
        open_seconds: float = OPEN_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._name = name
        self._limit = failures
        self._open_seconds = open_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        #: When the next call may pass; None while closed.
        self._next_probe_at: float | None = None
        self._probing = False
        #: Calls that wait for an answer which should come soon.
        self._waiting = 0
        #: Since when nothing has come although something was asked; None when something has.
        self._silent_since: float | None = None
        self._heard_at = -math.inf

    def silent_seconds(self) -> float:
        """Return for how long calls have waited without anything coming; 0 when none waits.

        A call that was given up after a while leaves the silence as it is: only a sign of life ends
        it.
        """
        with self._lock:
            return 0.0 if self._silent_since is None else self._clock() - self._silent_since

    def heard(self) -> None:
        """Note a sign of life that is no answer yet."""
        with self._lock:
            self._hear()

    def moved(self) -> None:
        """Note that bytes of a call leave, before it is answered.

        The first of them leave for somebody who is dead as well: they do not end a silence that
        has lasted.
        """
        with self._lock:
            now = self._clock()
            if self._silent_since is not None and now - self._silent_since < SILENT_SECONDS:
                self._silent_since = now

    @property
    def state(self) -> State:
        """What a call would meet now."""
        with self._lock:
            if self._next_probe_at is None:
                return "closed"
            waiting = self._clock() < self._next_probe_at
            return "open" if waiting and not self._probing else "half_open"

    def ready(self) -> bool:
        """Tell whether a call would pass now; changes nothing."""
        with self._lock:
            return self._next_probe_at is None or self._clock() >= self._next_probe_at

    def retry_after_seconds(self) -> float:
        """Return the seconds until a call may pass."""
        with self._lock:
            if self._next_probe_at is None:
                return 0.0
            return max(0.0, self._next_probe_at - self._clock())

    def enter(self) -> None:
        """Let a call pass, or raise BreakerOpen. Whoever passed must report how it went."""
        with self._lock:
            if self._next_probe_at is None:
                return
            now = self._clock()
            if now < self._next_probe_at:
                raise BreakerOpen(
                    f"channel {self._name} is left alone for a while",
                    retry_after_seconds=self._next_probe_at - now,
                    channel=self._name,
                )
            self._probing = True
            self._next_probe_at = now + self._open_seconds

    def succeeded(self) -> None:
        """Report a call that the channel answered, be it with an error of the caller's."""
        with self._lock:
            self._hear()
            self._failures = 0
            self._next_probe_at = None
            self._probing = False

    def failed(self) -> None:
        """Report a call by which the channel showed that it is not well."""
        with self._lock:
            self._failures += 1
            # Not set back by opening: a failed probe finds the limit reached.
            if self._failures >= self._limit:
                self._next_probe_at = self._clock() + self._open_seconds
                self._probing = False

    def unclear(self) -> None:
        """Report a call that says nothing about the channel: the next one may probe at once."""
        with self._lock:
            if self._probing:
                self._next_probe_at = self._clock()
                self._probing = False

    @contextmanager
    def watch(self, *, is_prompt: bool = True) -> Iterator[None]:
        """Let the body pass and report how it went. See `report`."""
        self.enter()
        with self.report(is_prompt=is_prompt):
            yield

    @contextmanager
    def report(self, *, is_fair: bool = True, is_prompt: bool = True) -> Iterator[None]:
        """Report how the body went, which is under way already: an open breaker does not stop it.

        What is not fair to the channel says nothing when it fails. What is not prompt, as a copy
        inside of the provider, may take minutes: that is no silence.
        """
        if not is_prompt:
            with self._report(is_fair=is_fair):
                yield
            return
        with self.waiting(), self._report(is_fair=is_fair):
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait in the block for something that should come soon."""
        with self._lock:
            began = self._clock()
            self._waiting += 1
            if self._silent_since is None:
                self._silent_since = began
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                is_short = self._clock() - began < SHORT_SECONDS
                if not self._waiting and (is_short or self._heard_at >= began):
                    self._silent_since = None

    def _hear(self) -> None:
        self._heard_at = self._clock()
        self._silent_since = self._heard_at if self._waiting else None

    @contextmanager
    def _report(self, *, is_fair: bool) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if harms_channel(error) and is_fair:
                self.failed()
            elif harms_channel(error) or _says_nothing(error):
                self.unclear()
            else:
                self.succeeded()
            raise
        self.succeeded()


def _says_nothing(error: BaseException) -> bool:
    return not isinstance(error, BloxError) or isinstance(
        error, DeadlinePassed | SourceUnavailable | StopError
    )
