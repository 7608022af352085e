"""The client: parse, resolve, vet, connect to what was vetted, ask, follow redirects by hand.

The same check is made when a rule is saved (`vet`) and for every connection of every exchange; the
address that was vetted is the address that is connected to.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import certifi

from shared.core.clock import Deadline
from shared.fetch.addresses import Address
from shared.fetch.answer import Answer, Exchange, Hop
from shared.fetch.errors import FetchRefused
from shared.fetch.headers import check_headers, travelling
from shared.fetch.limits import FetchLimits
from shared.fetch.patience import Patience
from shared.fetch.policy import FetchPolicy
from shared.fetch.resolving import Resolver, resolve, system_resolver
from shared.fetch.urls import Target, parse_url
from shared.fetch.wire import connect

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SAFE_METHODS = frozenset({"GET", "HEAD"})
#: Seconds that the check of a rule may take.
VET_SECONDS = 10.0
_DEFAULT_LIMITS = FetchLimits()


def _never_stop() -> None:
    """Go on."""


class Fetcher:
    """Fetches over vetted connections; thread-safe, keeps nothing open between exchanges."""

    def __init__(
        self,
        policy: FetchPolicy,
        *,
        resolver: Resolver = system_resolver,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._resolver = resolver
        self._tls = tls_context() if tls is None else tls

    def vet(self, url: str, *, seconds: float = VET_SECONDS) -> None:
        """Check a URL as it is checked before each connection, without one.

        Raises FetchRefused when we would not go there, FetchUnavailable when its name is not known.
        """
        self._addresses(parse_url(url), Patience(Deadline(seconds), _never_stop), seconds)

    @contextmanager
    def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        limits: FetchLimits = _DEFAULT_LIMITS,
        deadline: Deadline,
        check: Callable[[], None] = _never_stop,
    ) -> Iterator[Answer]:
        """Make one exchange and give its answer, whatever its status, until the block ends.

        `deadline` bounds all hops together; `check` is asked several times a second, and what it
        raises comes out. Redirects of a GET or HEAD are followed, each vetted again; to another
        host go only headers that cannot be credentials. Raises the errors of this package.
        """
        sent = check_headers(headers or {})
        target = parse_url(url)
        patience = Patience(deadline, check)
        hops = limits.max_redirects if method in _SAFE_METHODS else 0
        visited: list[Hop] = []
        for left in range(hops, -1, -1):
            addresses = self._addresses(target, patience, limits.connect_seconds)
            with connect(
                target,
                addresses,
                patience=patience,
                seconds=limits.connect_seconds,
                tls=self._tls,
            ) as wire:
                visited.append(self._hop(target, wire.address))
                exchange = Exchange(wire, limits)
                exchange.ask(method, target, sent, body)
                answer = Answer(exchange, target=target, hops=tuple(visited))
                location = answer.headers.get("location")
                if hops == 0 or answer.status not in _REDIRECTS or not location:
                    yield answer
                    return
            if left == 0:
                break
            following = target.join(location)
            if following.origin != target.origin:
                sent = travelling(sent)
            target = following
        raise FetchRefused(
            f"there were more than {hops} redirects", code="too_many_redirects", host=target.host
        )

    def _hop(self, target: Target, address: Address) -> Hop:
        permitted_by = self._policy.permitted_by(target.host, target.port, address)
        return Hop(target.host, target.port, str(address), permitted_by or "")

    def _addresses(self, target: Target, patience: Patience, seconds: float) -> tuple[Address, ...]:
        """Resolve a target; refuse it when any of its addresses is not one that we go to."""
        if not self._policy.permits_port(target.host, target.port):
            raise FetchRefused(
                "the port is not allowed", code="port_forbidden", host=target.host, port=target.port
            )
        found = resolve(self._resolver, target.host, patience=patience, seconds=seconds)
        for address in found:
            if not self._policy.permits(target.host, target.port, address):
                # Which one is not told: names inside a network are nobody's business outside.
                raise FetchRefused(
                    "the host has an address that is not allowed",
                    host=target.host,
                    port=target.port,
                )
        return found


def tls_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Return the context of a client that knows the public authorities, and those of `ca_file`."""
    context = ssl.create_default_context(cafile=certifi.where())
    if ca_file is not None:
        context.load_verify_locations(cafile=ca_file)
    return context
