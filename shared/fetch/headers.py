"""The headers that a caller adds to a request, and which of them travel to another host. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shared.fetch.errors import FetchRefused

MAX_HEADERS = 64
MAX_VALUE = 4096

_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,128}\Z")
#: ASCII only: what other bytes mean there, no two servers agree on.
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?\Z")
#: What frames the exchange, or names its two ends, is ours.
_OURS = frozenset(
    {
        "accept-encoding", "connection", "content-length", "expect", "forwarded", "host",
        "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
#: What says nothing about who asks. Anything else may be a credential.
_TRAVELLING = frozenset(
    {
        "accept", "accept-language", "if-match", "if-modified-since", "if-none-match", "if-range",
        "if-unmodified-since", "range", "user-agent",
    }
)  # fmt: skip


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers with small-letter names. Raises FetchRefused (`header_invalid`).

    Line breaks, what is not ASCII, and headers that frame the exchange are refused.
    """
    if len(headers) > MAX_HEADERS:
        raise _invalid(f"at most {MAX_HEADERS} headers are sent")
    checked: dict[str, str] = {}
    for name, value in headers.items():
        small = name.lower()
        if not _NAME.match(small):
            raise _invalid("a header's name is letters, digits and hyphens")
        if small in _OURS or small.startswith("proxy-"):
            raise _invalid(f"the header {small} is not for callers to set")
        if len(value) > MAX_VALUE or (value and not _VALUE.match(value)):
            raise _invalid(
                f"the header {small} has a value that cannot be sent: at most {MAX_VALUE} "
                "printable ASCII characters, without blanks around them"
            )
        checked[small] = value
    return checked


def travelling(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what a redirect to another host may carry."""
    return {name: value for name, value in headers.items() if name in _TRAVELLING}


def _invalid(message: str) -> FetchRefused:
    return FetchRefused(message, code="header_invalid")
