"""The hosts that a bucket's rules name: each behind its breaker, with a bound on how many ask it.

Of this process alone, and of one bucket: a path that fails or hangs is no reason to leave alone
what another bucket gets from the same host. A dead or slow host holds no thread for long that
another bucket's pulls could use.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.catalog.origins.slots import resource_of
from shared.core.clock import monotonic
from shared.core.errors import ResourceBusy, ThrottledError
from shared.core.shares import LOOK_SECONDS, Share, Shares
from shared.fetch import FetchError, FetchUnavailable, ResolverBusy, Target
from shared.storage.breaker import Breaker

#: Failures in a row after which a host is left alone, and for how long.
FAILURES = 5
OPEN_SECONDS = 15.0
#: Seconds until one that is busy is looked at again.
BUSY_SECONDS = 1.0
#: Bytes that show that a host is well; one that drips is as good as silent.
ENOUGH_BYTES = 64 * 1024
#: Hosts that are remembered.
MAX_HOSTS = 10_000

_Name = tuple[int, tuple[str, str, int]]


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
        self.bytes = 0


class Asking:
    """One execution that asks a host. What comes of it is told by `answered` and `came`."""

    def __init__(self, host: _Host, share: Share) -> None:
        self._host = host
        self.check = share.check
        self.waiting = host.breaker.waiting
        self.answered = host.breaker.heard

    def came(self, count: int) -> None:
        """Note bytes of a body."""
        # Several threads may add at once: a count that is lost costs nothing.
        self._host.bytes += count
        if self._host.bytes >= ENOUGH_BYTES:
            self._host.bytes = 0
            self._host.breaker.heard()


class Hosts:
    """Thread-safe. `per_host` executions ask one host at a time for one bucket."""

    def __init__(
        self,
        *,
        per_host: int = 4,
        shares: Shares | None = None,
        failures: int = FAILURES,
        open_seconds: float = OPEN_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._per_host = per_host
        self._shares = shares or Shares()
        self._failures, self._open_seconds, self._clock = failures, open_seconds, clock
        self._lock = threading.Lock()
        self._hosts: OrderedDict[_Name, _Host] = OrderedDict()

    def opens_in_seconds(self, bucket_id: int, target: Target) -> float:
        """Return the seconds until the host may be asked, 0 for now."""
        with self._lock:
            host = self._hosts.get((bucket_id, target.origin))
            if host is None:
                return 0.0
            if host.running >= self._per_host:
                return BUSY_SECONDS
        return 0.0 if host.breaker.ready() else max(0.1, host.breaker.retry_after_seconds())

    @contextmanager
    def use(self, bucket_id: int, target: Target) -> Iterator[Asking]:
        """Ask the host in the block, and report how it went.

        Raises HostBusy before the block when it may not be asked now, and ResourceBusy, as
        `Asking.check` does later, when it is silent and has its share of the threads. Only errors
        of the network and BadAnswer count against the host.
        """
        resource = resource_of(bucket_id, target)

        def refusal() -> ResourceBusy:
            return ResourceBusy(
                f"{target.host} does not answer those who ask it now",
                resource=resource,
                after_seconds=LOOK_SECONDS + random.uniform(0.1, 1.0),
            )

        host = self._take(bucket_id, target)
        try:
            with self._shares.enter(
                resource, host.breaker.silent_seconds, refusal=refusal
            ) as share:
                try:
                    yield Asking(host, share)
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

    def _take(self, bucket_id: int, target: Target) -> _Host:
        name = (bucket_id, target.origin)
        with self._lock:
            host = self._hosts.get(name)
            if host is None:
                host = _Host(target.host, self._failures, self._open_seconds, self._clock)
                self._hosts[name] = host
                self._forget()
            self._hosts.move_to_end(name)
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
