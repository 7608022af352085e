"""Pieces of the OpenAPI document that no signature shows: raw bodies and headers."""

from __future__ import annotations

from typing import Any


def _header(name: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": "string"},
    }


_BYTES = {"type": "string", "format": "binary"}

RAW_BODY: dict[str, Any] = {
    "required": True,
    "description": "The object's bytes as they are, with Content-Length or in chunks.",
    "content": {"application/octet-stream": {"schema": _BYTES}},
}

RAW_CONTENT: dict[str, Any] = {
    "description": "The bytes.",
    "content": {"application/octet-stream": {"schema": _BYTES}},
}

_IF_MATCH = _header("If-Match", "Only if the key's ETag is one of these, or `*`: if it exists.")

WRITE_CONDITIONS: list[dict[str, Any]] = [
    _IF_MATCH,
    _header("If-None-Match", "`*`: only if the key does not exist."),
]

PUT_HEADERS: list[dict[str, Any]] = [
    _header("Content-Type", "Kept, and given back by GET."),
    _header("Content-MD5", "Base64; the body must have this MD5."),
    _header("X-Blox-Sha256", "Hexadecimal; the body must have this SHA-256."),
    _header("X-Blox-Size", "Length of a body sent in chunks; it must have just this."),
    _header("x-blox-meta-*", "Any number of headers of your own, 2 KiB in all, given back by GET."),
    _header("traceparent", "W3C trace context; the tasks continue the trace."),
    *WRITE_CONDITIONS,
]

PART_HEADERS: list[dict[str, Any]] = [
    _header("Content-MD5", "Base64; the part must have this MD5."),
    _header("X-Blox-Sha256", "Hexadecimal; the part must have this SHA-256."),
    _header("X-Blox-Size", "Length of a part sent in chunks; it must have just this."),
]

READ_HEADERS: list[dict[str, Any]] = [
    _header("Range", "One range of bytes, such as `bytes=0-99` or `bytes=-100`."),
    _header("If-Range", "The range counts only if the ETag or date is still this."),
    _IF_MATCH,
    _header("If-None-Match", "304 if the ETag is one of these."),
    _header("If-Modified-Since", "304 if it has not changed since."),
    _header("If-Unmodified-Since", "412 if it has changed since."),
]
