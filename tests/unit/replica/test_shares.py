"""Some threads stay free of a target that does not answer."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from services.replica.shares import SILENT_SECONDS, WAIT_SECONDS, Shares
from shared.catalog.channel_slots import ChannelSlots
from shared.core.errors import ResourceBusy
from shared.storage.breaker import Breaker
from shared.storage.file import FileChannel
from shared.storage.registry import OpenChannel


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(clock: Clock, tmp_path: Path) -> OpenChannel:
    channel = FileChannel(tmp_path / "c", name="c", create=True)
    return OpenChannel(
        channel=channel,
        breaker=Breaker("c", clock=clock),
        read_breaker=Breaker("c", clock=clock),
        part_bytes=1,
        parallel_parts=1,
        upload_limit=None,
        download_limit=None,
        max_running=0,
    )


def test_a_silent_target_gets_most_threads_and_never_all(opened: OpenChannel, clock: Clock) -> None:
    shares, slots = Shares(8), ChannelSlots()
    with ExitStack() as held:
        for _ in range(6):
            held.enter_context(shares.enter(opened, slots))
        with pytest.raises(ResourceBusy) as refused, shares.enter(opened, slots):
            pass
        assert refused.value.resource == "channel:c"
        assert refused.value.after_seconds > WAIT_SECONDS
        # It answers one of them: all may use it.
        opened.breaker.succeeded()
        for _ in range(2):
            held.enter_context(shares.enter(opened, slots))
    clock.now += SILENT_SECONDS
    with shares.enter(opened, slots):
        pass


@pytest.mark.parametrize("threads", [None, 1])
def test_where_there_is_nothing_to_share(opened: OpenChannel, threads: int | None) -> None:
    shares, slots = Shares(threads), ChannelSlots()
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(shares.enter(opened, slots))
