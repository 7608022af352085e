"""Where the bytes of a transfer come from: read by range, as often as needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from shared.core.clock import Deadline
from shared.storage.channel import Found
from shared.storage.errors import ChannelError, ObjectMissing, SourceError, SourceUnavailable


class Readable(Protocol):
    """The reading half of a channel; staging has it too."""

    def get(
        self, key: str, *, start: int = 0, length: int | None = None, deadline: Deadline
    ) -> AbstractContextManager[Iterator[bytes]]:
        """See Channel.get."""
        ...

    def head(self, key: str, *, deadline: Deadline) -> Found | None:
        """See Channel.head."""
        ...


class Source(Protocol):
    """Immutable bytes. Safe to read from several threads at once."""

    def size(self, deadline: Deadline) -> int:
        """Return how many bytes there are."""
        ...

    def open(
        self, start: int, length: int | None, deadline: Deadline
    ) -> AbstractContextManager[Iterator[bytes]]:
        """Read `length` bytes from `start` on; None reads to the end."""
        ...


class ChannelSource:
    """An object on a channel, or a file in staging, as a source.

    Its errors are the source's, never the target channel's: SourceError when no reading can help,
    SourceUnavailable when a later one may.
    """

    def __init__(self, channel: Readable, key: str) -> None:
        self._channel = channel
        self._key = key

    def size(self, deadline: Deadline) -> int:
        """See Source.size."""
        with _as_source(self._key):
            found = self._channel.head(self._key, deadline=deadline)
        if found is None:
            raise SourceError("the source is not there", code="source_missing", key=self._key)
        return found.size

    @contextmanager
    def open(self, start: int, length: int | None, deadline: Deadline) -> Iterator[Iterator[bytes]]:
        """See Source.open."""
        opening = self._channel.get(self._key, start=start, length=length, deadline=deadline)
        with _as_source(self._key):
            chunks = opening.__enter__()
        try:
            yield self._read(chunks)
        finally:
            opening.__exit__(None, None, None)

    def _read(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        while True:
            with _as_source(self._key):
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk


@contextmanager
def _as_source(key: str) -> Iterator[None]:
    try:
        yield
    except ObjectMissing as error:
        raise SourceError("the source is not there", code="source_missing", key=key) from error
    except ChannelError as error:
        if error.code == "short_read":
            raise SourceError("the source is short", key=key) from error
        raise SourceUnavailable("the source cannot be read", key=key, reason=str(error)) from error
