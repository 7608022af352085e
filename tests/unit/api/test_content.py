"""Reading over several places, on real directories with faults."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from services.api.content import ContentMissing, ContentReader, ContentResponse, Door, Place
from services.api.edge import Aborted
from services.api.work import Work
from shared.core.clock import Deadline
from shared.core.errors import UnavailableError
from shared.storage.body import Body
from shared.storage.channel import Found
from shared.storage.errors import ChannelUnavailable
from shared.storage.faulty import FaultyChannel
from shared.storage.file import FileChannel

CONTENT = bytes(range(256)) * 12_000
KEY = "ab/content"


class Breaking:
    """A channel that fails after so many bytes of each read."""

    def __init__(self, inner: FileChannel, after_bytes: int) -> None:
        self._inner, self._after_bytes = inner, after_bytes

    @contextmanager
    def get(
        self, key: str, *, start: int = 0, length: int | None = None, deadline: Deadline
    ) -> Iterator[Iterator[bytes]]:
        with self._inner.get(key, start=start, length=length, deadline=deadline) as chunks:
            yield self._break(chunks)

    def _break(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        left = self._after_bytes
        for chunk in chunks:
            if len(chunk) >= left:
                yield chunk[:left]
                raise ChannelUnavailable("cut")
            left -= len(chunk)
            yield chunk

    def head(self, key: str, *, deadline: Deadline) -> Found | None:
        return self._inner.head(key, deadline=deadline)


@pytest.fixture
def disk(tmp_path: Path) -> FileChannel:
    channel = FileChannel(tmp_path / "disk", name="disk", create=True)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    channel.put(KEY, Body(CONTENT), sha256=sha256, deadline=Deadline(10))
    return channel


def read_all(reader: ContentReader) -> bytes:
    content = b"".join(iter(reader.read, b""))
    reader.close()
    return content


def at(channel: object, key: str = KEY) -> Place:
    return Place(lambda: Door(channel), key)  # type: ignore[arg-type]


def test_range_is_read_from_the_first_place(disk: FileChannel) -> None:
    reader = ContentReader([at(disk)], start=1000, length=2_000_000)
    assert read_all(reader) == CONTENT[1000:2_001_000]
    assert reader.is_done()


def test_place_that_fails_at_once_is_passed_over(disk: FileChannel) -> None:
    broken = FaultyChannel(disk)
    broken.fail_always(ChannelUnavailable("down"))

    def no_channel() -> Door:
        raise UnavailableError("there is no such channel")

    places = [at(broken), Place(no_channel, KEY), at(disk, "ab/other"), at(disk)]
    assert read_all(ContentReader(places, start=0, length=len(CONTENT))) == CONTENT


def test_place_that_fails_on_the_way_is_replaced_at_the_same_byte(disk: FileChannel) -> None:
    places = [at(Breaking(disk, 1_500_001)), at(Breaking(disk, 1)), at(disk)]
    assert read_all(ContentReader(places, start=7, length=3_000_000)) == CONTENT[7:3_000_007]


def test_no_place_left_is_said(disk: FileChannel) -> None:
    reader = ContentReader([at(Breaking(disk, 10)), at(disk, "ab/other")], start=0, length=100)
    assert reader.read() == CONTENT[:10]
    with pytest.raises(ContentMissing):
        reader.read()
    with pytest.raises(ContentMissing):
        ContentReader([], start=0, length=1).read()


def test_nothing_to_read_opens_nothing() -> None:
    reader = ContentReader([], start=0, length=0)
    assert reader.is_done()
    assert reader.read() == b""


def answer(disk: FileChannel, *, seconds_per_mebibyte: float) -> bytes:
    """Return what a client gets that takes bytes at this pace, with half a second of patience."""
    reader = ContentReader([at(disk)], start=0, length=len(CONTENT))
    taken = bytearray()

    async def receive() -> dict[str, object]:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    async def send(message: dict[str, Any]) -> None:
        body = bytes(message.get("body", b""))
        await asyncio.sleep(seconds_per_mebibyte * len(body) / 2**20)
        taken.extend(body)

    async def scenario() -> None:
        response = ContentResponse(
            reader,
            reader.read(),
            work=Work(None, threads=1),  # type: ignore[arg-type]
            status=200,
            headers={},
            idle_seconds=0.5,
        )
        await response({}, receive, send)  # type: ignore[arg-type]

    asyncio.run(scenario())
    return bytes(taken)


def test_client_that_takes_its_time_gets_everything(disk: FileChannel) -> None:
    assert answer(disk, seconds_per_mebibyte=0.8) == CONTENT


def test_client_that_stands_still_is_let_go(disk: FileChannel) -> None:
    with pytest.raises(Aborted):
        answer(disk, seconds_per_mebibyte=60)
