"""Reads a transfer's source into memory, and knows whether somebody waits for it just now."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from shared.core.clock import Deadline
from shared.storage.buffers import Buffers
from shared.storage.errors import SourceError
from shared.storage.source import Source

#: One for the process: transfers share its memory.
_BUFFERS = Buffers()


class SourceReader:
    """A source that is said to have `size` bytes. Safe to use from several threads.

    All its errors are the source's: SourceError, `source_size` when it has another size.
    """

    def __init__(self, source: Source, *, size: int, key: str, deadline: Deadline) -> None:
        self.source = source
        self._size = size
        self._key = key
        self._deadline = deadline
        #: Threads that wait for the source just now.
        self._readers: set[int] = set()

    def is_waited_for(self) -> bool:
        """Tell whether any thread waits for the source."""
        return bool(self._readers)

    def check_size(self) -> None:
        """Ask the source for its size."""
        with self._reading():
            actual = self.source.size(self._deadline)
        self._demand_size(actual)

    @contextmanager
    def part(self, start: int, length: int) -> Iterator[memoryview]:
        """Hold a range in memory for the length of the block."""
        with _BUFFERS.take(length) as data:
            self._fill(data, start)
            yield data

    def in_use(self) -> AbstractContextManager[None]:
        """Keep the memory of parts for the next ones in the block."""
        return _BUFFERS.in_use()

    def _fill(self, data: memoryview, start: int) -> None:
        length, filled = len(data), 0
        with self._reading(), self.source.open(start, length, self._deadline) as chunks:
            for chunk in chunks:
                end = filled + len(chunk)
                if end <= length:
                    data[filled:end] = chunk
                filled = end
        if filled != length:
            raise SourceError(
                "the source gives another number of bytes",
                key=self._key,
                start=start,
                length=length,
                given=filled,
            )

    def read_whole(self) -> bytearray:
        """Read a small source to its end: that tells its size without a question of its own."""
        data = bytearray()
        with self._reading(), self.source.open(0, None, self._deadline) as chunks:
            for chunk in chunks:
                data += chunk
                if len(data) > self._size:
                    break
        self._demand_size(len(data))
        return data

    def _demand_size(self, actual: int) -> None:
        if actual != self._size:
            raise SourceError(
                "the source has another size",
                code="source_size",
                key=self._key,
                expected=self._size,
                actual=actual,
            )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        me = threading.get_ident()
        self._readers.add(me)
        try:
            yield
        finally:
            self._readers.discard(me)
