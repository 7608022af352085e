"""The W3C trace context of a request, so that one trace reaches from it to the last copy. Pure."""

from __future__ import annotations

import re

from fastapi import Request

_TRACE_PARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")


def trace_parent(request: Request) -> str | None:
    """Return the request's `traceparent`, None when it has none or a malformed one."""
    value = request.headers.get("traceparent")
    return value if value is not None and _TRACE_PARENT.match(value) else None
