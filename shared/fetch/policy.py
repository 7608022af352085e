"""Where connections may go: public addresses on a few ports, and what the operator allows besides.

Pure. An entry of the allow-list is a name (`files.internal`, `.internal` for all below it), an
address or a network, each with an optional port: `10.0.0.0/8`, `10.1.2.3:8080`, `[fd00::/8]:*`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from shared.core.errors import InvalidError
from shared.fetch.addresses import Address, Network, is_global

DEFAULT_PORTS = (80, 443)

_BRACKETED = re.compile(r"\[(?P<place>[^\[\]]+)\](?::(?P<port>\*|\d{1,5}))?\Z")
_PLAIN = re.compile(r"(?P<place>[^:\[\]]+)(?::(?P<port>\*|\d{1,5}))?\Z")
_NAME = re.compile(r"\.?[a-z0-9_-]+(\.[a-z0-9_-]+)*\Z")
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line of the allow-list. `ports` None leaves the port to the general rule."""

    text: str
    name: str | None
    network: Network | None
    ports: frozenset[int] | None
    any_port: bool

    def opens(self, port: int, general: frozenset[int]) -> bool:
        return self.any_port or port in (general if self.ports is None else self.ports)

    def has_name(self, host: str) -> bool:
        if self.name is None:
            return False
        return host.endswith(self.name) if self.name.startswith(".") else host == self.name

    def has_address(self, address: Address) -> bool:
        return self.network is not None and address in self.network


class FetchPolicy:
    """What the operator allows. Raises InvalidError (`allow_invalid`) for an entry that is none."""

    def __init__(self, *, ports: Iterable[int] = DEFAULT_PORTS, allow: Iterable[str] = ()) -> None:
        self._ports = frozenset(ports)
        self._entries = tuple(_parse(text) for text in allow)

    def permits(self, host: str, port: int, address: Address) -> bool:
        """Tell whether a connection may be made to this address of a host, on this port."""
        return self.permitted_by(host, port, address) is not None

    def permitted_by(self, host: str, port: int, address: Address) -> str | None:
        """Return the entry of the allow-list that permits a connection, '' where none is needed.

        None when it may not be made.
        """
        for entry in self._entries:
            is_meant = entry.has_name(host) or entry.has_address(address)
            if is_meant and entry.opens(port, self._ports):
                return entry.text
        return "" if port in self._ports and is_global(address) else None

    def permits_port(self, host: str, port: int) -> bool:
        """Tell whether any address could be reached on this port; says so before a look-up."""
        if port in self._ports:
            return True
        return any(
            entry.opens(port, self._ports) and (entry.network is not None or entry.has_name(host))
            for entry in self._entries
        )


def _parse(text: str) -> _Entry:
    small = text.strip().lower()
    bare = _bare_network(small)
    if bare is not None:
        return _Entry(small, None, bare, None, any_port=False)
    match = _BRACKETED.match(small) or _PLAIN.match(small)
    if match is None:
        raise _invalid(text)
    place, port = match["place"], match["port"]
    if port not in (None, "*") and not 1 <= int(port) <= _MAX_PORT:
        raise _invalid(text)
    ports = None if port in (None, "*") else frozenset((int(port),))
    network = _bare_network(place)
    if network is None and not _NAME.match(place):
        raise _invalid(text)
    return _Entry(small, None if network else place, network, ports, any_port=port == "*")


def _bare_network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _invalid(text: str) -> InvalidError:
    return InvalidError(
        f"{text!r} is no entry of an allow-list: a name, an address or a network, "
        "with or without :port or :*",
        code="allow_invalid",
    )
