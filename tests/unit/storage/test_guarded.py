"""A channel behind its breaker."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.storage.breaker import Breaker
from shared.storage.errors import BreakerOpen, ChannelFull, ChannelUnavailable
from shared.storage.faulty import FaultyChannel
from shared.storage.file import FileChannel
from shared.storage.guarded import GuardedChannel
from tests.support.content import put, read, soon


@pytest.fixture
def inner(tmp_path: Path) -> FaultyChannel:
    channel = FileChannel(tmp_path / "root", name="disk")
    channel.prepare(deadline=soon())
    put(channel, "key", b"abc")
    return FaultyChannel(channel)


def test_every_call_counts_and_none_passes_an_open_breaker(inner: FaultyChannel) -> None:
    def nothing(channel: GuardedChannel) -> None:
        put(channel, "key", b"abc")

    calls = {
        "put": nothing,
        "get": lambda c: read(c, "key"),
        "head": lambda c: c.head("key", deadline=soon()),
        "delete": lambda c: c.delete("key", deadline=soon()),
        "list": lambda c: list(c.list(deadline=soon())),
        "copy": lambda c: c.copy("key", "other", deadline=soon()),
        "copy_remote": lambda c: c.copy_remote(
            c.remote("key"), "other", sha256="", deadline=soon()
        ),
        "copy_part": lambda c: c.copy_part(
            c.remote("key"), "other", "x", 1, offset=0, length=1, deadline=soon()
        ),
        "create_upload": lambda c: c.create_upload("key", deadline=soon()),
        "list_parts": lambda c: list(c.list_parts("key", "x", deadline=soon())),
        "complete_upload": lambda c: c.complete_upload("key", "x", [], deadline=soon()),
        "abort_upload": lambda c: c.abort_upload("key", "x", deadline=soon()),
        "list_uploads": lambda c: list(c.list_uploads(deadline=soon())),
        "probe": lambda c: c.probe(deadline=soon()),
        "sweep_partial": lambda c: c.sweep_partial(minimum_age_seconds=9, deadline=soon()),
        "prepare": lambda c: c.prepare(deadline=soon()),
    }
    for name, call in calls.items():
        breaker = Breaker("disk", failures=1)
        channel = GuardedChannel(inner, breaker)
        inner.fail_next(name, ChannelUnavailable("down"))
        with pytest.raises(ChannelUnavailable):
            call(channel)
        assert breaker.state == "open", name
        made = inner.calls[name]
        with pytest.raises(BreakerOpen):
            call(channel)
        assert inner.calls[name] == made, name


def test_what_the_reader_does_with_the_bytes_is_not_counted(inner: FaultyChannel) -> None:
    breaker = Breaker("disk", failures=1)
    channel = GuardedChannel(inner, breaker)

    def use() -> None:
        with channel.get("key", deadline=soon()):
            raise ChannelUnavailable("of another channel")

    with pytest.raises(ChannelUnavailable):
        use()
    assert breaker.state == "closed"


def test_a_read_that_breaks_in_the_middle_is_counted(
    inner: FaultyChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker = Breaker("disk", failures=1)
    channel = GuardedChannel(inner, breaker)
    with channel.get("key", length=10, deadline=soon()) as chunks:
        assert next(chunks) == b"abc"
        with pytest.raises(ChannelUnavailable):
            next(chunks)
    assert breaker.state == "open"


def test_channel_that_is_full_still_gives_what_it_holds(inner: FaultyChannel) -> None:
    breaker, reads = Breaker("disk", failures=1), Breaker("disk", failures=1)
    channel = GuardedChannel(inner, breaker, reads=reads)
    inner.fail_always(ChannelFull("full"), "put")
    with pytest.raises(ChannelFull):
        put(channel, "other", b"abc")
    with pytest.raises(BreakerOpen):
        put(channel, "other", b"abc")
    assert read(channel, "key") == b"abc"
    channel.delete("key", deadline=soon())
    assert (breaker.state, reads.state) == ("open", "closed")


def test_read_under_way_goes_on_when_others_open_the_breaker(inner: FaultyChannel) -> None:
    breaker = Breaker("disk", failures=1)
    channel = GuardedChannel(inner, breaker)
    with channel.get("key", deadline=soon()) as chunks:
        breaker.failed()
        assert next(chunks) == b"abc"


def test_reader_that_took_its_time_blames_nobody(inner: FaultyChannel) -> None:
    now = 0.0
    breaker = Breaker("disk", failures=1)
    channel = GuardedChannel(inner, breaker, clock=lambda: now)
    with channel.get("key", length=10, deadline=soon()) as chunks:
        assert next(chunks) == b"abc"
        now += 60.0
        with pytest.raises(ChannelUnavailable):
            next(chunks)
    assert breaker.state == "closed"
