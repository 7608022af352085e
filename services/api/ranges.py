"""Which bytes a Range header asks for. Pure: no request, no storage."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SPEC = re.compile(r"(?P<first>[0-9]*)[ \t]*-[ \t]*(?P<last>[0-9]*)\Z")
#: Digits of a position that can still be one; longer ones lie behind everything.
_MAX_DIGITS = 19
_BEHIND = 10**_MAX_DIGITS


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`length` bytes from `start` on; a range is never empty."""

    start: int
    length: int

    def content_range(self, size: int) -> str:
        """Return the Content-Range of an answer that holds these bytes of `size`."""
        return f"bytes {self.start}-{self.start + self.length - 1}/{size}"


class Unsatisfiable(Exception):
    """No byte of the content lies in the range (416)."""


def parse_range(header: str | None, *, size: int) -> ByteRange | None:
    """Return the bytes that are asked for, or None for the whole content.

    As the standard has it, a header that is not understood (another unit, a list of ranges, bad
    syntax) is ignored. Raises Unsatisfiable.
    """
    if header is None:
        return None
    unit, equals, spec = header.partition("=")
    match = _SPEC.match(spec.strip())
    if not equals or unit.strip().lower() != "bytes" or match is None:
        return None
    first_digits, last_digits = match["first"], match["last"]
    if not first_digits:
        return _suffix(_position(last_digits), size) if last_digits else None
    first = _position(first_digits)
    last = _position(last_digits) if last_digits else size - 1
    if last_digits and last < first:
        return None
    if first >= size:
        raise Unsatisfiable
    return ByteRange(first, min(last, size - 1) - first + 1)


def _position(digits: str) -> int:
    return int(digits) if len(digits) <= _MAX_DIGITS else _BEHIND


def _suffix(count: int, size: int) -> ByteRange:
    length = min(count, size)
    if length == 0:
        raise Unsatisfiable
    return ByteRange(size - length, length)
