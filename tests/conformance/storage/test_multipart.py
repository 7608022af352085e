"""Multipart uploads: parts in any order, repeated, listed, joined, dropped."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from shared.core.clock import Deadline
from shared.storage.body import Body
from shared.storage.channel import Channel, Part
from shared.storage.errors import ChannelError, ChannelUnavailable, DeadlinePassed, UploadGone
from tests.conformance.storage.conftest import PART
from tests.support.content import put, read, sha256

DATA = os.urandom(2 * PART + 12345)
PIECES = [DATA[:PART], DATA[PART : 2 * PART], DATA[2 * PART :]]

#: UploadGone; moto answers 500 instead.
GONE = (UploadGone, ChannelUnavailable)


def send(channel: Channel, upload_id: str, number: int, data: bytes | None = None) -> Part:
    body = PIECES[number - 1] if data is None else data
    return channel.put_part(
        "whole", upload_id, number, Body(body), offset=(number - 1) * PART, deadline=Deadline(60)
    )


def begin(channel: Channel) -> str:
    return channel.create_upload("whole", sha256=sha256(DATA), deadline=Deadline(60))


def test_parts_sent_in_any_order_become_the_whole(channel: Channel, deadline: Deadline) -> None:
    upload_id = begin(channel)
    parts = [send(channel, upload_id, number) for number in (3, 1, 2)]
    assert [part.size for part in parts] == [12345, PART, PART]
    assert channel.head("whole", deadline=deadline) is None
    stored = channel.complete_upload("whole", upload_id, parts, deadline=deadline)
    assert (stored.key, stored.size) == ("whole", len(DATA))
    assert stored.etag
    assert read(channel, "whole") == DATA
    found = channel.head("whole", deadline=deadline)
    assert found is not None
    assert found.etag == stored.etag
    assert found.md5 is None
    assert found.sha256 in {None, sha256(DATA)}


def test_parts_may_be_sent_at_the_same_time(channel: Channel, deadline: Deadline) -> None:
    upload_id = begin(channel)
    with ThreadPoolExecutor(3) as pool:
        parts = list(pool.map(lambda number: send(channel, upload_id, number), (1, 2, 3)))
    channel.complete_upload("whole", upload_id, parts, deadline=deadline)
    assert read(channel, "whole") == DATA


def test_a_repeated_part_counts_once_and_the_last_one(channel: Channel, deadline: Deadline) -> None:
    upload_id = begin(channel)
    send(channel, upload_id, 1, bytes(PART))
    parts = [send(channel, upload_id, number) for number in (1, 2, 3)]
    listed = list(channel.list_parts("whole", upload_id, deadline=deadline))
    assert listed == parts
    channel.complete_upload("whole", upload_id, parts, deadline=deadline)
    assert read(channel, "whole") == DATA


def test_listed_parts_complete_the_upload(channel: Channel, deadline: Deadline) -> None:
    upload_id = begin(channel)
    assert list(channel.list_parts("whole", upload_id, deadline=deadline)) == []
    for number in (2, 1, 3):
        send(channel, upload_id, number)
    listed = list(channel.list_parts("whole", upload_id, deadline=deadline))
    assert [(part.number, part.size) for part in listed] == [(1, PART), (2, PART), (3, 12345)]
    channel.complete_upload("whole", upload_id, listed, deadline=deadline)
    assert read(channel, "whole") == DATA


def test_a_part_that_was_never_sent_cannot_be_named(channel: Channel, deadline: Deadline) -> None:
    upload_id = begin(channel)
    parts = [send(channel, upload_id, 1)]
    with pytest.raises(ChannelError) as caught:
        channel.complete_upload(
            "whole",
            upload_id,
            [*parts, Part(number=2, etag="0" * 32, size=PART)],
            deadline=deadline,
        )
    assert not isinstance(caught.value, UploadGone)
    assert channel.head("whole", deadline=deadline) is None
    assert list(channel.list_parts("whole", upload_id, deadline=deadline)) == parts


def test_open_uploads_are_listed_until_they_end(channel: Channel, deadline: Deadline) -> None:
    first, second = begin(channel), begin(channel)
    other = channel.create_upload("other/ü", deadline=deadline)
    listed = list(channel.list_uploads(deadline=deadline))
    assert {(upload.key, upload.upload_id) for upload in listed} == {
        ("whole", first),
        ("whole", second),
        ("other/ü", other),
    }
    assert all(upload.started_at.tzinfo is None for upload in listed)
    channel.abort_upload("whole", first, deadline=deadline)
    channel.complete_upload(
        "whole", second, [send(channel, second, n) for n in (1, 2, 3)], deadline=deadline
    )
    remaining = list(channel.list_uploads(deadline=deadline))
    assert [upload.upload_id for upload in remaining] == [other]


def test_many_uploads_are_listed_over_pages(channel: Channel, deadline: Deadline) -> None:
    ids = {channel.create_upload(f"many/{n % 3}", deadline=deadline) for n in range(12)}
    listed = list(channel.list_uploads(deadline=deadline))
    assert len(listed) == 12
    assert {upload.upload_id for upload in listed} == ids


def test_an_aborted_upload_is_gone(channel: Channel, deadline: Deadline) -> None:
    upload_id = begin(channel)
    part = send(channel, upload_id, 1)
    for _ in range(2):
        channel.abort_upload("whole", upload_id, deadline=deadline)
    with pytest.raises(GONE):
        send(channel, upload_id, 2)
    with pytest.raises(UploadGone):
        list(channel.list_parts("whole", upload_id, deadline=deadline))
    with pytest.raises(GONE):
        channel.complete_upload("whole", upload_id, [part], deadline=deadline)
    assert channel.head("whole", deadline=deadline) is None


def test_an_upload_that_never_was_is_gone(channel: Channel, deadline: Deadline) -> None:
    for upload_id in ("0" * 32, "2~nothing", "../../outside"):
        with pytest.raises(GONE):
            send(channel, upload_id, 1)
        channel.abort_upload("whole", upload_id, deadline=deadline)


def test_a_completed_upload_cannot_be_written_to(channel: Channel, deadline: Deadline) -> None:
    upload_id = begin(channel)
    parts = [send(channel, upload_id, number) for number in (1, 2, 3)]
    channel.complete_upload("whole", upload_id, parts, deadline=deadline)
    with pytest.raises(GONE):
        send(channel, upload_id, 1, bytes(PART))
    assert read(channel, "whole") == DATA


def test_completing_replaces_an_object(channel: Channel, deadline: Deadline) -> None:
    put(channel, "whole", b"old")
    upload_id = begin(channel)
    parts = [send(channel, upload_id, number) for number in (1, 2, 3)]
    assert read(channel, "whole") == b"old"
    channel.complete_upload("whole", upload_id, parts, deadline=deadline)
    assert read(channel, "whole") == DATA


def test_a_multipart_call_without_time_left_does_nothing(
    channel: Channel, deadline: Deadline
) -> None:
    upload_id = begin(channel)
    part = send(channel, upload_id, 1)
    late = Deadline(0)
    calls = [
        lambda: channel.put_part(
            "whole", upload_id, 2, Body(PIECES[1]), offset=PART, deadline=late
        ),
        lambda: list(channel.list_parts("whole", upload_id, deadline=late)),
        lambda: channel.complete_upload("whole", upload_id, [part], deadline=late),
        lambda: channel.abort_upload("whole", upload_id, deadline=late),
        lambda: list(channel.list_uploads(deadline=late)),
    ]
    for call in calls:
        with pytest.raises(DeadlinePassed):
            call()
    assert list(channel.list_parts("whole", upload_id, deadline=deadline)) == [part]


def test_many_parts_are_listed_over_pages(channel: Channel, deadline: Deadline) -> None:
    upload_id = begin(channel)
    for number in range(1, 13):
        send(channel, upload_id, number, b"%d" % number)
    listed = list(channel.list_parts("whole", upload_id, deadline=deadline))
    assert [part.number for part in listed] == list(range(1, 13))
    channel.abort_upload("whole", upload_id, deadline=deadline)
