"""Reads a transfer's source into memory, and knows whether somebody waits for it just now."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shared.core.clock import Deadline
from shared.storage.errors import SourceError
from shared.storage.source import Source


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

    def read(self, start: int, length: int) -> bytearray:
        """Read a range into memory."""
        data = bytearray(length)
        filled = 0
        with self._reading(), self.source.open(start, length, self._deadline) as chunks:
            for chunk in chunks:
                data[filled : filled + len(chunk)] = chunk
                filled += len(chunk)
        if filled != length or len(data) != length:
            raise SourceError("the source is short", key=self._key, start=start, length=length)
        return data

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
