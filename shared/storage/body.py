"""The bytes of one put or one part: of known size, read as often as needed, sent at a pace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

#: Bytes that are read, hashed or written in one go; small enough to look up from several times a
#: second.
CHUNK_BYTES: Final = 1024 * 1024


def _no_pace(count: int) -> None:
    """Let everything pass at once."""


class Body:
    """Bytes on their way to a channel.

    A channel takes them with `chunks()`, as often as it needs, and calls `pace(n)` as `n` bytes
    leave; `pace` may sleep (bandwidth) and may raise (the execution must stop).
    """

    __slots__ = ("_data", "pace", "size")

    def __init__(
        self, data: bytes | bytearray | memoryview, *, pace: Callable[[int], None] = _no_pace
    ) -> None:
        self._data = data
        self.size = len(data)
        self.pace = pace

    def view(self) -> memoryview:
        """Return all bytes without copying them."""
        return memoryview(self._data)

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        """Yield the bytes in order, asking `pace` before each chunk."""
        view = memoryview(self._data)
        for start in range(0, self.size, chunk_bytes):
            piece = view[start : start + chunk_bytes]
            self.pace(len(piece))
            yield piece
