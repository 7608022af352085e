"""A version's bytes to the client: from the first place that has them, in constant memory.

All places hold the same immutable bytes, so that a channel that fails half-way is replaced by the
next one at the same byte.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import structlog
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.api.edge import Aborted
from services.api.work import Work
from shared.core.clock import Deadline
from shared.core.errors import BloxError, UnavailableError
from shared.storage.bandwidth import TokenBucket
from shared.storage.errors import ChannelError, DeadlinePassed, ObjectMissing
from shared.storage.source import Readable

log = structlog.get_logger()

#: One read from one source may go on for this long: a large object to a slow client.
READ_SECONDS = 6 * 3600.0
#: Bytes that a client must take within the idle limit.
PIECE_BYTES = 128 * 1024
#: A crowded limit is shared in turns of this length, below every idle limit.
MAX_PAUSE_SECONDS = 5.0


#: What makes the reader go on at the next place: the channel fails, or cannot be looked up.
_PLACE_FAILED = (ChannelError, DeadlinePassed, UnavailableError)


class ContentShort(ChannelError):
    """A source ended before its time."""

    code = "short_read"


class ContentMissing(UnavailableError):
    """No place has the bytes at the moment."""

    code = "content_unavailable"


@dataclass(frozen=True, slots=True)
class Door:
    """A channel or staging, opened for reading, with its limit on bytes per second."""

    readable: Readable
    limit: TokenBucket | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes are: how to open the channel (it may block, or raise), and the key there."""

    open: Callable[[], Door]
    key: str
    location_id: int | None = None


@dataclass(frozen=True, slots=True)
class Damaged:
    """A location whose bytes are not there, or too few."""

    location_id: int
    code: str


class ContentReader:
    """Reads a range chunk by chunk, on whatever thread asks next; not for two at a time."""

    def __init__(self, places: Sequence[Place], *, start: int, length: int) -> None:
        self._places = iter(places)
        self._position, self._left = start, length
        self._limit: TokenBucket | None = None
        #: Seconds that the last chunk should wait, by the channel's bandwidth limit.
        self.pause_seconds = 0.0
        self._open: AbstractContextManager[Iterator[bytes]] | None = None
        self._chunks: Iterator[bytes] = iter(())
        self._last_error: BloxError | None = None
        self._present: Place | None = None
        #: Places of which the channel said that it does not have the bytes.
        self.damaged: list[Damaged] = []

    def is_done(self) -> bool:
        """Tell whether all was read."""
        return self._left == 0

    def read(self) -> bytes:
        """Return the next chunk, empty at the end. Raises ContentMissing when no place is left."""
        while self._left > 0:
            place = None if self._open is not None else self._next_place()
            try:
                if place is not None:
                    self._enter(place)
                chunk = next(self._chunks, b"")
                if not chunk:
                    raise ContentShort(position=self._position)
            except _PLACE_FAILED as error:
                log.warning("content_place_failed", position=self._position, error=str(error))
                self._last_error = error
                self._note(error)
                self.close()
                continue
            self._position += len(chunk)
            self._left -= len(chunk)
            self.pause_seconds = 0.0 if self._limit is None else self._limit.take(len(chunk))
            if self._left == 0:
                self.close()
            return chunk
        return b""

    def close(self) -> None:
        """Let go of the present place."""
        opened, self._open, self._chunks = self._open, None, iter(())
        if opened is not None:
            # What a broken place says at its end adds nothing.
            with contextlib.suppress(*_PLACE_FAILED):
                opened.__exit__(None, None, None)

    def _next_place(self) -> Place:
        place = next(self._places, None)
        if place is None:
            raise ContentMissing(error=str(self._last_error)) from self._last_error
        return place

    def _note(self, error: BloxError) -> None:
        place = self._present
        if place is None or place.location_id is None:
            return
        if isinstance(error, ObjectMissing) or error.code == ContentShort.code:
            self.damaged.append(Damaged(place.location_id, error.code))

    def _enter(self, place: Place) -> None:
        self._present = place
        door = place.open()
        self._limit = door.limit
        opened = door.readable.get(
            place.key, start=self._position, length=self._left, deadline=Deadline(READ_SECONDS)
        )
        self._chunks = opened.__enter__()
        self._open = opened


class ContentResponse(Response):
    """An answer whose body comes from a reader.

    `first` was read already, so that an error before it could still be answered as one.
    """

    def __init__(
        self,
        reader: ContentReader,
        first: bytes,
        *,
        work: Work,
        status: int,
        headers: Mapping[str, str],
        idle_seconds: float,
    ) -> None:
        super().__init__(status_code=status, headers=headers)
        self._reader, self._first, self._work = reader, first, work
        self._idle_seconds = idle_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything. Raises ClientDisconnect, or Aborted when no place or time is left."""
        if self._reader.is_done() and len(self._first) <= PIECE_BYTES:
            await self._send_start(send)
            await send({"type": "http.response.body", "body": self._first, "more_body": False})
            return
        gone = asyncio.ensure_future(_until_gone(receive))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._idle_seconds) as idle:
                await self._send_start(send)
                chunk = self._first
                while True:
                    for piece in _pieces(chunk):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                        idle.reschedule(loop.time() + self._idle_seconds)
                    if self._reader.is_done():
                        break
                    if self._reader.pause_seconds:
                        await asyncio.sleep(min(self._reader.pause_seconds, MAX_PAUSE_SECONDS))
                    if gone.done():
                        raise ClientDisconnect
                    chunk = await self._work.more_files(self._reader.read)
                    idle.reschedule(loop.time() + self._idle_seconds)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (TimeoutError, BloxError) as error:
            raise Aborted from error
        finally:
            gone.cancel()
            if not self._reader.is_done():
                await self._work.clean_up(self._reader.close)

    async def _send_start(self, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})


def _pieces(chunk: bytes) -> Iterator[memoryview]:
    view = memoryview(chunk)
    for start in range(0, len(view), PIECE_BYTES):
        yield view[start : start + PIECE_BYTES]


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
