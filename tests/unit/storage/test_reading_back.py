"""Reading back over a network: ranges at the same time, hashed in their order."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from shared.core.errors import ShuttingDown
from shared.storage.errors import ChannelUnavailable, ChecksumMismatch
from shared.storage.faulty import FaultyChannel
from shared.storage.file import FileChannel
from shared.storage.registry import OpenChannel
from shared.storage.spec import Tuning
from shared.storage.verify import RANGE_BYTES, verify
from tests.support.content import put, sha256, soon

DATA = os.urandom(3 * RANGE_BYTES + 5)


class FarAway(FileChannel):
    """A directory that is taken for something behind a network."""

    kind = "far"  # type: ignore[assignment]


@pytest.fixture
def far(tmp_path: Path) -> FaultyChannel:
    channel = FarAway(tmp_path / "far", name="far", create=True)
    put(channel, "k", DATA)
    return FaultyChannel(channel)


def proven(far: FaultyChannel, data: bytes = DATA, **more: object) -> None:
    opened = OpenChannel.around(far, Tuning())
    verify(opened, "k", size=len(DATA), sha256=sha256(data), deadline=soon(), **more)  # type: ignore[arg-type]


def test_the_right_bytes_are_proven(far: FaultyChannel) -> None:
    proven(far)


@pytest.mark.parametrize("at", [0, RANGE_BYTES, len(DATA) - 1])
def test_one_wrong_byte_is_found_in_every_range(far: FaultyChannel, at: int) -> None:
    other = bytearray(DATA)
    other[at] ^= 1
    with pytest.raises(ChecksumMismatch):
        proven(far, bytes(other))


def test_ranges_that_change_places_are_other_bytes(far: FaultyChannel) -> None:
    first, second = DATA[:RANGE_BYTES], DATA[RANGE_BYTES : 2 * RANGE_BYTES]
    put(far.inner, "k", second + first + DATA[2 * RANGE_BYTES :])
    with pytest.raises(ChecksumMismatch):
        proven(far)


def test_a_range_that_fails_ends_it(far: FaultyChannel) -> None:
    far.fail_always(ChannelUnavailable("down"), "get")
    with pytest.raises(ChannelUnavailable):
        proven(far)


def test_whoever_has_to_stop_is_not_held_up(far: FaultyChannel) -> None:
    gate, asked = far.hold("get"), threading.Event()

    def check() -> None:
        if gate.reached.is_set():
            asked.set()
            raise ShuttingDown("")

    try:
        with pytest.raises(ShuttingDown):
            proven(far, check=check)
        assert asked.is_set()
    finally:
        gate.release()
