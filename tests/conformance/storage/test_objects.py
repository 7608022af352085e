"""Whole objects: put, get, head, delete, copy."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Callable

import pytest

from shared.core.clock import Deadline, utc_now
from shared.storage.body import CHUNK_BYTES, Body
from shared.storage.channel import Channel
from shared.storage.errors import (
    ChannelUnavailable,
    DeadlinePassed,
    InvalidKey,
    KeyTaken,
    ObjectMissing,
    SourceError,
)
from tests.conformance.storage.conftest import MEBIBYTE, PART
from tests.support.content import put, read, sha256

BAD_KEYS = [
    "",
    "/absolute",
    "trailing/",
    "a//b",
    ".",
    "..",
    "../outside",
    "a/../../outside",
    "a/./b",
    "nul\0byte",
    "new\nline",
    "delete\x7f",
    "lone\ud800surrogate",
    "x" * 1025,
    "ä" * 513,
    "x" * 256,
]

STRANGE_KEYS = [
    "a b+c%20d",
    "ünïcödé/文件/😀",
    "q?x=1&y#z",
    "x" * 255,
    "/".join(["y" * 100] * 9),
    "...dots",
    "back\\slash",
    "quote'\"<&>",
]


def test_put_then_get_returns_the_same_bytes(channel: Channel, deadline: Deadline) -> None:
    data = os.urandom(3 * MEBIBYTE + 17)
    stored = put(channel, "folder/object", data)
    assert (stored.key, stored.size) == ("folder/object", len(data))
    assert read(channel, "folder/object") == data


def test_an_object_may_be_empty(channel: Channel, deadline: Deadline) -> None:
    put(channel, "empty", b"")
    found = channel.head("empty", deadline=deadline)
    assert found is not None
    assert found.size == 0
    assert read(channel, "empty") == b""


def test_chunks_are_bounded(channel: Channel, deadline: Deadline) -> None:
    put(channel, "large", bytes(2 * MEBIBYTE + 1))
    with channel.get("large", deadline=deadline) as chunks:
        sizes = [len(chunk) for chunk in chunks]
    assert sum(sizes) == 2 * MEBIBYTE + 1
    assert max(sizes) <= CHUNK_BYTES


def test_a_range_is_exactly_what_was_asked_for(channel: Channel, deadline: Deadline) -> None:
    put(channel, "digits", b"0123456789")
    for start, end in [(0, None), (0, 1), (9, 10), (3, 7), (3, None), (0, 10), (0, 0), (5, 5)]:
        length = None if end is None else end - start
        assert read(channel, "digits", start=start, length=length) == b"0123456789"[start:end]


def test_a_range_past_the_end_is_an_error(channel: Channel, deadline: Deadline) -> None:
    put(channel, "digits", b"0123456789")
    for start, length in [(8, 5), (10, 1), (11, None), (500, 7)]:
        with pytest.raises(ChannelUnavailable) as caught:
            read(channel, "digits", start=start, length=length)
        assert caught.value.code == "short_read"
    assert read(channel, "digits", start=10) == b""


def test_get_of_a_missing_key_raises_on_entry(channel: Channel, deadline: Deadline) -> None:
    for length in (None, 0, 3):
        opening = channel.get("nothing/here", length=length, deadline=deadline)
        with pytest.raises(ObjectMissing) as caught:
            opening.__enter__()
        assert caught.value.facts["key"] == "nothing/here"


def test_a_get_may_be_left_early(channel: Channel, deadline: Deadline) -> None:
    put(channel, "large", bytes(4 * MEBIBYTE))
    with channel.get("large", deadline=deadline) as chunks:
        assert next(chunks)
    assert read(channel, "large", length=3) == b"\0\0\0"


def test_an_error_of_the_reader_comes_out_unchanged(channel: Channel, deadline: Deadline) -> None:
    put(channel, "object", b"abc")

    def use() -> None:
        with channel.get("object", deadline=deadline) as chunks:
            next(chunks)
            raise FileNotFoundError("mine")

    with pytest.raises(FileNotFoundError, match="mine"):
        use()


def test_head_tells_size_and_time(channel: Channel, deadline: Deadline) -> None:
    put(channel, "object", b"abc")
    found = channel.head("object", deadline=deadline)
    assert found is not None
    assert (found.key, found.size) == ("object", 3)
    assert found.etag
    assert abs(found.modified_at - utc_now()) < dt.timedelta(minutes=2)
    assert found.modified_at.tzinfo is None


def test_head_of_a_missing_key_is_none(channel: Channel, deadline: Deadline) -> None:
    put(channel, "some/object", b"abc")
    assert channel.head("some/other", deadline=deadline) is None
    assert channel.head("some/object/below", deadline=deadline) is None
    assert channel.head("some", deadline=deadline) is None


def test_what_the_provider_computed_is_right(channel: Channel, deadline: Deadline) -> None:
    put(channel, "object", b"abc")
    found = channel.head("object", deadline=deadline)
    assert found is not None
    assert found.md5 in {None, "900150983cd24fb0d6963f7d28e17f72"}
    assert found.sha256 in {None, sha256(b"abc")}
    assert found.declared_sha256 in {None, sha256(b"abc")}
    promised = channel.capabilities.checksum
    assert (promised == "md5") == (found.md5 is not None)
    assert (promised == "sha256") == (found.sha256 is not None)


def test_put_replaces_an_object_and_changes_its_etag(channel: Channel, deadline: Deadline) -> None:
    first = put(channel, "object", b"first")
    second = put(channel, "object", b"second!")
    assert read(channel, "object") == b"second!"
    assert first.etag != second.etag


def test_put_if_absent_leaves_what_is_there(channel: Channel, deadline: Deadline) -> None:
    put(channel, "object", b"first", if_absent=True)
    with pytest.raises(KeyTaken):
        put(channel, "object", b"second", if_absent=True)
    assert read(channel, "object") == b"first"


def test_put_if_absent_has_one_winner_of_many(channel: Channel, deadline: Deadline) -> None:
    start = threading.Barrier(8)
    outcomes: list[str] = []

    def race(number: int) -> None:
        start.wait()
        try:
            put(channel, "contested", str(number).encode() * 1000, if_absent=True)
            outcomes.append("won")
        except KeyTaken:
            outcomes.append("lost")

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["lost"] * 7 + ["won"]
    assert len(set(read(channel, "contested"))) == 1


def test_a_body_with_another_sha256_is_not_stored(channel: Channel, deadline: Deadline) -> None:
    with pytest.raises(SourceError):
        channel.put("object", Body(b"abc"), sha256=sha256(b"abd"), deadline=deadline)
    assert channel.head("object", deadline=deadline) is None


def test_delete_removes_and_may_be_repeated(channel: Channel, deadline: Deadline) -> None:
    put(channel, "folder/object", b"abc")
    put(channel, "folder/neighbour", b"def")
    for _ in range(2):
        channel.delete("folder/object", deadline=deadline)
        assert channel.head("folder/object", deadline=deadline) is None
    channel.delete("never/was/there", deadline=deadline)
    channel.delete("folder/neighbour/below", deadline=deadline)
    assert read(channel, "folder/neighbour") == b"def"


def test_copy_gives_an_equal_object(channel: Channel, deadline: Deadline) -> None:
    for size in (0, 10, 2 * PART + 3):
        data = os.urandom(size)
        put(channel, "from/ü here", data)
        stored = channel.copy("from/ü here", "to/there", deadline=deadline)
        assert (stored.key, stored.size) == ("to/there", size)
        assert read(channel, "to/there") == data
        assert read(channel, "from/ü here") == data
    assert list(channel.list_uploads(deadline=deadline)) == []


def test_copy_of_a_missing_key_raises(channel: Channel, deadline: Deadline) -> None:
    with pytest.raises(ObjectMissing):
        channel.copy("nothing", "to/there", deadline=deadline)
    assert channel.head("to/there", deadline=deadline) is None


def test_a_strange_key_is_a_key(channel: Channel, deadline: Deadline) -> None:
    for key in STRANGE_KEYS:
        put(channel, key, b"abc")
        assert read(channel, key) == b"abc"
    listed = [entry.key for entry in channel.list(deadline=deadline)]
    assert listed == sorted(STRANGE_KEYS, key=lambda key: key.encode())
    for key in STRANGE_KEYS:
        channel.delete(key, deadline=deadline)
        assert channel.head(key, deadline=deadline) is None


def test_a_bad_key_is_refused_by_every_call(channel: Channel, deadline: Deadline) -> None:
    put(channel, "fine", b"abc")
    for key in BAD_KEYS:
        for call in calls_with(channel, key, deadline):
            with pytest.raises(InvalidKey):
                call()
    assert [entry.key for entry in channel.list(deadline=deadline)] == ["fine"]


def calls_with(channel: Channel, key: str, deadline: Deadline) -> list[Callable[[], object]]:
    return [
        lambda: channel.put(key, Body(b""), sha256=sha256(b""), deadline=deadline),
        lambda: read(channel, key),
        lambda: channel.head(key, deadline=deadline),
        lambda: channel.delete(key, deadline=deadline),
        lambda: channel.copy("fine", key, deadline=deadline),
        lambda: channel.copy(key, "fine", deadline=deadline),
        lambda: channel.create_upload(key, deadline=deadline),
    ]


def test_a_call_without_time_left_does_nothing(channel: Channel, deadline: Deadline) -> None:
    put(channel, "object", b"abc")
    late = Deadline(0)

    def get() -> None:
        with channel.get("object", deadline=late) as chunks:
            list(chunks)

    calls: list[Callable[[], object]] = [
        lambda: channel.put("new", Body(b"abc"), sha256=sha256(b"abc"), deadline=late),
        get,
        lambda: channel.head("object", deadline=late),
        lambda: channel.delete("object", deadline=late),
        lambda: list(channel.list(deadline=late)),
        lambda: channel.copy("object", "new", deadline=late),
        lambda: channel.create_upload("new", deadline=late),
        lambda: channel.probe(deadline=late),
        lambda: channel.prepare(deadline=late),
    ]
    for call in calls:
        with pytest.raises(DeadlinePassed):
            call()
    assert read(channel, "object") == b"abc"
    assert channel.head("new", deadline=deadline) is None


def test_prepare_may_be_repeated_and_probe_is_content(channel: Channel, deadline: Deadline) -> None:
    put(channel, "object", b"abc")
    channel.prepare(deadline=deadline)
    channel.probe(deadline=deadline)
    assert read(channel, "object") == b"abc"


def test_sweeping_what_was_cut_short_touches_no_object(
    channel: Channel, deadline: Deadline
) -> None:
    put(channel, "object", b"abc")
    upload_id = channel.create_upload("other", deadline=deadline)
    assert channel.sweep_partial(minimum_age_seconds=0, deadline=deadline) == 0
    assert read(channel, "object") == b"abc"
    assert [u.upload_id for u in channel.list_uploads(deadline=deadline)] == [upload_id]
