"""The hosts of origins: each behind its breaker, and with a bound on how many ask it at a time.

Of this process alone. A dead or slow host is left alone, so that it holds no thread that another
bucket's pulls could use.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.core.clock import monotonic
from shared.core.errors import ThrottledError
from shared.fetch import FetchError, FetchUnavailable, ResolverBusy, Target
from shared.storage.breaker import Breaker

#: Failures in a row after which a host is left alone, and for how long.
FAILURES = 5
OPEN_SECONDS = 15.0
#: Seconds until one that is busy is looked at again.
BUSY_SECONDS = 1.0
#: Hosts that are remembered.
MAX_HOSTS = 10_000


class HostBusy(ThrottledError):
    """The host is left alone for a while, or asked by as many as may."""

    code = "host_busy"


class BadAnswer(FetchUnavailable):
    """An answer by which the host showed that it is not well."""

    code = "origin_broken"


class _Host:
    def __init__(self, name: str, failures: int, seconds: float, clock: Callable[[], float]):
        self.breaker = Breaker(name, failures=failures, open_seconds=seconds, clock=clock)
        self.running = 0


class Hosts:
    """Thread-safe. `per_host` executions ask one host at a time."""

    def __init__(
        self,
        *,
        per_host: int = 4,
        failures: int = FAILURES,
        open_seconds: float = OPEN_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._per_host = per_host
        self._failures, self._open_seconds, self._clock = failures, open_seconds, clock
        self._lock = threading.Lock()
        self._hosts: OrderedDict[tuple[str, str, int], _Host] = OrderedDict()

    def opens_in_seconds(self, target: Target) -> float:
        """Return the seconds until the host may be asked, 0 for now."""
        with self._lock:
            host = self._hosts.get(target.origin)
            if host is None:
                return 0.0
            if host.running >= self._per_host:
                return BUSY_SECONDS
        return 0.0 if host.breaker.ready() else max(0.1, host.breaker.retry_after_seconds())

    @contextmanager
    def use(self, target: Target) -> Iterator[None]:
        """Ask the host in the block, and report how it went.

        Raises HostBusy before the block when it may not be asked now. Only errors of the network
        and BadAnswer count against the host.
        """
        host = self._take(target)
        try:
            try:
                yield
            except ResolverBusy:
                host.breaker.unclear()
                raise
            except FetchUnavailable:
                host.breaker.failed()
                raise
            except FetchError:
                host.breaker.succeeded()
                raise
            except BaseException:
                host.breaker.unclear()
                raise
            host.breaker.succeeded()
        finally:
            with self._lock:
                host.running -= 1

    def _take(self, target: Target) -> _Host:
        with self._lock:
            host = self._hosts.get(target.origin)
            if host is None:
                host = _Host(target.host, self._failures, self._open_seconds, self._clock)
                self._hosts[target.origin] = host
                self._forget()
            self._hosts.move_to_end(target.origin)
            if host.running >= self._per_host:
                raise HostBusy(retry_after_seconds=BUSY_SECONDS)
            if not host.breaker.ready():
                raise HostBusy(retry_after_seconds=host.breaker.retry_after_seconds())
            host.breaker.enter()
            host.running += 1
        return host

    def _forget(self) -> None:
        if len(self._hosts) <= MAX_HOSTS:
            return
        for name, host in self._hosts.items():
            if host.running == 0:
                del self._hosts[name]
                return
