"""Over a network the next part is read while the last one is being sent, and no more than that."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from shared.core.clock import Deadline
from shared.core.errors import ShuttingDown
from shared.storage.body import Body
from shared.storage.channel import Part
from shared.storage.file import FileChannel
from shared.storage.registry import OpenChannel
from shared.storage.source import ChannelSource
from shared.storage.spec import Tuning
from shared.storage.transfer import Transferred, transfer
from tests.support.content import put, read, sha256, soon
from tests.support.eventually import eventually
from tests.support.outbox import Thread

PART = 64 * 1024
DATA = os.urandom(6 * PART + 1)


class FarAway(FileChannel):
    """A directory that is taken for something behind a network, and counts what is sent to it."""

    kind = "far"  # type: ignore[assignment]
    sending = most = 0
    gate: threading.Event

    def put_part(
        self, key: str, upload_id: str, number: int, body: Body, *, offset: int, deadline: Deadline
    ) -> Part:
        with _LOCK:
            self.sending += 1
            self.most = max(self.most, self.sending)
        try:
            assert self.gate.wait(30)
            return super().put_part(key, upload_id, number, body, offset=offset, deadline=deadline)
        finally:
            with _LOCK:
                self.sending -= 1


class Counted(ChannelSource):
    """A source that counts the parts that were read from it."""

    reads = 0

    def open(
        self, start: int, length: int | None, deadline: Deadline
    ) -> AbstractContextManager[Iterator[bytes]]:
        @contextmanager
        def opened() -> Iterator[Iterator[bytes]]:
            with super(Counted, self).open(start, length, deadline) as chunks:
                yield chunks
            with _LOCK:
                self.reads += 1

        return opened()


_LOCK = threading.Lock()


class Setting:
    def __init__(self, path: Path) -> None:
        origin = FileChannel(path / "origin", name="origin", create=True)
        put(origin, "from", DATA)
        self.source = Counted(origin, "from")
        self.far = FarAway(path / "far", name="far", create=True)
        self.far.gate = threading.Event()
        self.stopping = threading.Event()

    def transfer(self, parallel_parts: int) -> Transferred:
        tuning = Tuning(part_bytes=PART, parallel_parts=parallel_parts)

        def check() -> None:
            if self.stopping.is_set():
                raise ShuttingDown("")

        return transfer(
            self.source,
            OpenChannel.around(self.far, tuning),
            "to",
            size=len(DATA),
            sha256=sha256(DATA),
            check=check,
            deadline=soon(),
        )


@pytest.fixture
def at(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


@pytest.mark.parametrize("parallel_parts", [1, 2])
def test_one_part_is_read_ahead(at: Setting, parallel_parts: int) -> None:
    sender = Thread(lambda: at.transfer(parallel_parts))
    eventually(lambda: at.source.reads == parallel_parts + 1)
    eventually(lambda: at.far.sending == parallel_parts)
    at.far.gate.set()
    assert sender.join_answer().parts_sent == 7
    assert at.far.most == parallel_parts
    assert read(at.far, "to") == DATA


def test_part_that_waits_for_its_turn_leaves_with_the_owner(at: Setting) -> None:
    sender = Thread(lambda: at.transfer(1))
    eventually(lambda: at.source.reads == 2)
    at.stopping.set()
    with pytest.raises(ShuttingDown):
        sender.join_answer()
    at.far.gate.set()
    eventually(lambda: not [one for one in threading.enumerate() if one.name == "transfer"])
    assert at.far.most == 1
