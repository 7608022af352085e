"""Names to addresses, within a time that the system's resolver does not keep by itself."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence

from shared.fetch.addresses import Address
from shared.fetch.errors import FetchRefused, FetchUnavailable, ResolverBusy
from shared.fetch.patience import Patience

#: Returns the addresses of a name, as text. Blocks; raises OSError.
Resolver = Callable[[str], Sequence[str]]

#: Look-ups under way in this process: a dead resolver holds no more threads than these.
MAX_LOOKUPS = 64
_slots = threading.BoundedSemaphore(MAX_LOOKUPS)


def system_resolver(host: str) -> list[str]:
    """Ask the system for all A and AAAA records of a name."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(one[4][0]) for one in found]


def resolve(
    resolver: Resolver, host: str, *, patience: Patience, seconds: float
) -> tuple[Address, ...]:
    """Return all addresses of a host, each once; a literal address is itself.

    Raises FetchUnavailable (`name_unknown`) and FetchTimeout.
    """
    literal = _literal(host)
    if literal is not None:
        return (literal,)
    lookup = _Lookup(resolver, host)
    for slice_seconds in patience.slices(
        seconds, code="name_timeout", message="the name was not resolved in time"
    ):
        if lookup.done.wait(slice_seconds):
            break
    if lookup.error is not None:
        raise FetchUnavailable(
            "the name is not known", code="name_unknown", host=host
        ) from lookup.error
    addresses = tuple(dict.fromkeys(_address(text, host) for text in lookup.found))
    if not addresses:
        raise FetchUnavailable("the name has no address", code="name_unknown", host=host)
    return addresses


class _Lookup:
    """One question to the resolver, on a thread that may be left behind."""

    def __init__(self, resolver: Resolver, host: str) -> None:
        self.done = threading.Event()
        self.found: Sequence[str] = ()
        self.error: Exception | None = None
        if not _slots.acquire(blocking=False):
            raise ResolverBusy("too many names are being resolved", host=host)
        self._resolver, self._host = resolver, host
        try:
            threading.Thread(target=self._run, name="resolve", daemon=True).start()
        except RuntimeError:
            _slots.release()
            raise

    def _run(self) -> None:
        try:
            self.found = self._resolver(self._host)
        except Exception as error:
            self.error = error
        finally:
            _slots.release()
            self.done.set()


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _address(text: str, host: str) -> Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise FetchRefused("the name has a strange address", host=host) from error
