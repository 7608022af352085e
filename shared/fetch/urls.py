"""Taking a URL apart, strictly: what two parsers could read in two ways is refused. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import quote, urljoin, urlsplit

from shared.fetch.errors import FetchRefused

MAX_URL = 8192
PORTS = {"http": 80, "https": 443}

#: Blanks, control characters and the backslash, which some take for a slash.
_UNSAFE = re.compile(r"[\x00-\x20\x7f-\xa0\\]")
_AUTHORITY = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?\Z"
)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\Z")
#: A last label that other parsers take for a number: decimal, octal and hexadecimal addresses.
_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")
_MAX_NAME = 253
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"
_QUERY_SAFE = _PATH_SAFE + "?"


@dataclass(frozen=True, slots=True)
class Target:
    """A vetted form of a URL: small-letter host (IPv6 without brackets), port, and what to ask."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> tuple[str, str, int]:
        """What credentials belong to."""
        return self.scheme, self.host, self.port

    @property
    def host_header(self) -> str:
        """The Host header: the name as it was given, and the port unless it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL again."""
        return f"{self.scheme}://{self.host_header}{self.path}"

    def join(self, location: str) -> Target:
        """Return where a redirect from here leads. Raises FetchRefused."""
        if len(location) > MAX_URL or _UNSAFE.search(location):
            raise FetchRefused("the redirect is not a URL", code="redirect_invalid")
        try:
            return parse_url(urljoin(self.url, location))
        except ValueError as error:
            raise FetchRefused("the redirect is not a URL", code="redirect_invalid") from error


def parse_url(url: str) -> Target:
    """Take a URL apart; a fragment is dropped. Raises FetchRefused (`url_invalid`).

    International names are refused as they stand, because their forms fold into others: they are
    to be written as xn--.
    """
    if len(url) > MAX_URL or _UNSAFE.search(url):
        raise _invalid("a URL has no blanks, control characters or backslashes")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _invalid("it is not a URL") from error
    if parts.scheme not in PORTS:
        raise _invalid("only http and https are fetched")
    if "@" in parts.netloc:
        raise _invalid("a URL carries no user name or password")
    if not parts.netloc.isascii():
        raise _invalid("an international name is written in its xn-- form")
    match = _AUTHORITY.match(parts.netloc)
    if match is None:
        raise _invalid("the host is not a name or an address")
    host = _name(match["name"]) if match["name"] else _v6(match["v6"])
    port = int(match["port"]) if match["port"] else PORTS[parts.scheme]
    if not 1 <= port <= 65535:
        raise _invalid("there is no such port")
    path = quote(parts.path or "/", safe=_PATH_SAFE)
    query = f"?{quote(parts.query, safe=_QUERY_SAFE)}" if parts.query else ""
    return Target(parts.scheme, host, port, path + query)


def _name(text: str) -> str:
    name = text.lower()
    labels = name.split(".")
    if _NUMBER.match(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError as error:
            raise _invalid("an address has four decimal numbers without leading zeros") from error
    if len(name) > _MAX_NAME or not all(_LABEL.match(label) for label in labels):
        raise _invalid("the host is not a name or an address")
    return name


def _v6(text: str) -> str:
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError as error:
        raise _invalid("the host is not a name or an address") from error


def _invalid(message: str) -> FetchRefused:
    return FetchRefused(message, code="url_invalid")
