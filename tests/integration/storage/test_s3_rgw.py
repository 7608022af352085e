"""What only a real S3 does: refuse wrong checksums and signatures, judge races."""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter
from typing import Any

import pytest

from shared.storage import s3, s3_multipart
from shared.storage.body import Body
from shared.storage.channel import Channel
from shared.storage.errors import (
    ChannelRefused,
    ChannelUnavailable,
    DamagedOnTheWay,
    KeyTaken,
    UploadGone,
)
from shared.storage.registry import OpenChannel, open_channel
from shared.storage.source import ChannelSource
from shared.storage.spec import ChannelSpec, Tuning
from shared.storage.transfer import transfer
from tests.servers.rgw import CephRGW
from tests.support.content import put, read, sha256, soon

PART = 5 * 1024 * 1024


def channel_on(rgw: CephRGW, *, secret_key: str = "", **settings: Any) -> Channel:
    return open_channel(
        ChannelSpec(
            name="rgw",
            kind="s3",
            settings={
                "endpoint": rgw.server.endpoint,
                "bucket": f"b{uuid.uuid4().hex[:20]}",
                **settings,
            },
            secrets={
                "access_key": rgw.server.access_key,
                "secret_key": secret_key or rgw.server.secret_key,
            },
        )
    )


@pytest.fixture
def channel(rgw: CephRGW) -> Channel:
    made = channel_on(rgw)
    made.prepare(deadline=soon())
    return made


def test_a_body_that_was_damaged_on_the_way_is_refused(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checksum is of other bytes than what arrives: the provider must see it, not we."""
    monkeypatch.setattr(s3, "md5_of", lambda body: bytes(16))
    with pytest.raises(DamagedOnTheWay) as caught:
        put(channel, "k", b"abc")
    assert caught.value.facts["provider_code"] == "BadDigest"
    assert channel.head("k", deadline=soon()) is None


def test_a_part_that_was_damaged_on_the_way_is_refused(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_id = channel.create_upload("k", deadline=soon())
    monkeypatch.setattr(s3_multipart, "md5_of", lambda body: bytes(16))
    with pytest.raises(DamagedOnTheWay) as caught:
        channel.put_part("k", upload_id, 1, Body(bytes(PART)), offset=0, deadline=soon())
    assert caught.value.facts["provider_code"] == "BadDigest"
    assert list(channel.list_parts("k", upload_id, deadline=soon())) == []
    channel.abort_upload("k", upload_id, deadline=soon())


def test_a_wrong_secret_is_refused(channel: Channel, rgw: CephRGW) -> None:
    bucket = channel.settings.bucket  # type: ignore[attr-defined]
    stranger = channel_on(rgw, secret_key="wrong", bucket=bucket)
    for call in (
        lambda: put(stranger, "k", b"abc"),
        lambda: stranger.head("k", deadline=soon()),
        lambda: list(stranger.list(deadline=soon())),
        lambda: stranger.probe(deadline=soon()),
    ):
        with pytest.raises(ChannelRefused) as caught:
            call()
        assert caught.value.facts["status"] == 403


def test_a_missing_bucket_is_refused_not_empty(rgw: CephRGW) -> None:
    nowhere = channel_on(rgw)
    with pytest.raises(ChannelRefused):
        list(nowhere.list(deadline=soon()))
    with pytest.raises(ChannelRefused):
        nowhere.head("k", deadline=soon())
    with pytest.raises(ChannelRefused):
        nowhere.delete("k", deadline=soon())
    with pytest.raises(ChannelRefused):
        read(nowhere, "k")


def test_of_sixteen_writers_of_one_absent_key_one_wins(channel: Channel) -> None:
    barrier, outcomes = threading.Barrier(16), Counter[str]()
    lock = threading.Lock()

    def race(number: int) -> None:
        barrier.wait()
        try:
            put(channel, "contested", str(number).encode() * 5000, if_absent=True)
            outcome = "won"
        except KeyTaken:
            outcome = "lost"
        except ChannelUnavailable:
            outcome = "unclear"
        with lock:
            outcomes[outcome] += 1

    threads = [threading.Thread(target=race, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes["won"] == 1, outcomes
    assert outcomes["lost"] == 15, outcomes


def test_parts_of_an_upload_that_is_gone_are_told_apart(channel: Channel) -> None:
    upload_id = channel.create_upload("k", deadline=soon())
    part = channel.put_part("k", upload_id, 1, Body(b"abc"), offset=0, deadline=soon())
    channel.abort_upload("k", upload_id, deadline=soon())
    with pytest.raises(UploadGone):
        channel.put_part("k", upload_id, 2, Body(b"abc"), offset=3, deadline=soon())
    with pytest.raises(UploadGone):
        list(channel.list_parts("k", upload_id, deadline=soon()))
    # Ceph calls this one "already in progress"; a transfer asks for the parts first.
    with pytest.raises((UploadGone, ChannelUnavailable)):
        channel.complete_upload("k", upload_id, [part], deadline=soon())


def test_a_part_that_is_too_small_is_refused(channel: Channel) -> None:
    upload_id = channel.create_upload("k", deadline=soon())
    parts = [
        channel.put_part("k", upload_id, n, Body(b"abc"), offset=3 * n - 3, deadline=soon())
        for n in (1, 2)
    ]
    with pytest.raises(ChannelRefused) as caught:
        channel.complete_upload("k", upload_id, parts, deadline=soon())
    assert caught.value.facts["provider_code"] == "EntityTooSmall"
    channel.abort_upload("k", upload_id, deadline=soon())


def test_a_whole_transfer_is_proven_by_reading_it_back(channel: Channel) -> None:
    data = os.urandom(3 * PART + 7)
    put(channel, "from", data)
    opened = OpenChannel.around(channel, Tuning(part_bytes=PART))
    done = transfer(
        ChannelSource(channel, "from"),
        opened,
        "to",
        size=len(data),
        sha256=sha256(data),
        deadline=soon(),
    )
    assert (done.parts_sent, done.bytes_sent) == (4, len(data))
    assert done.etag.endswith("-4")
    assert read(channel, "to") == data


def test_a_stopped_gateway_is_unavailable_and_comes_back(channel: Channel, rgw: CephRGW) -> None:
    put(channel, "k", b"abc")
    rgw.gateway.stop()
    try:
        with pytest.raises(ChannelUnavailable):
            read(channel, "k")
    finally:
        rgw.restart_gateway()
    assert read(channel, "k") == b"abc"
