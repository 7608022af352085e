"""What a kill leaves of a multipart upload on a directory, and what is made of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from shared.core.clock import Deadline
from shared.storage.body import Body
from shared.storage.channel import Part
from shared.storage.errors import ChannelRefused, DeadlinePassed, UploadGone
from shared.storage.file import FileChannel
from shared.storage.file_sweep import sweep_temporary
from tests.support.content import read, soon


@pytest.fixture
def channel(tmp_path: Path) -> FileChannel:
    made = FileChannel(tmp_path / "root", name="disk")
    made.prepare(deadline=soon())
    return made


@pytest.fixture
def upload_id(channel: FileChannel) -> str:
    return channel.create_upload("key", deadline=soon())


def send(channel: FileChannel, upload_id: str, number: int, data: bytes, offset: int) -> Part:
    return channel.put_part("key", upload_id, number, Body(data), offset=offset, deadline=soon())


def folder(channel: FileChannel, upload_id: str) -> Path:
    return channel.root.path / "uploads" / upload_id


def test_a_part_is_on_disk_before_its_line_and_both_before_the_answer(
    channel: FileChannel, upload_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bytes]] = []
    real = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        synced.append((name, (folder(channel, upload_id) / "parts").read_bytes()))
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    send(channel, upload_id, 1, b"abc", 0)
    assert [name for name, _ in synced] == ["data", "parts"]
    assert synced[0][1] == b""
    assert synced[1][1] != b""


def test_a_part_that_was_cut_short_is_not_listed(channel: FileChannel, upload_id: str) -> None:
    first = send(channel, upload_id, 1, b"abc", 0)

    def pace(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        channel.put_part("key", upload_id, 2, Body(b"def", pace=pace), offset=3, deadline=soon())
    (folder(channel, upload_id) / "data").open("ab").write(b"de")
    assert list(channel.list_parts("key", upload_id, deadline=soon())) == [first]
    second = send(channel, upload_id, 2, b"def", 3)
    channel.complete_upload("key", upload_id, [first, second], deadline=soon())
    assert read(channel, "key") == b"abcdef"


def test_a_torn_line_is_no_line_and_spoils_none(channel: FileChannel, upload_id: str) -> None:
    first = send(channel, upload_id, 1, b"abc", 0)
    journal = folder(channel, upload_id) / "parts"
    for torn in (b'{"n": 2, "o": 3', b"\0\0\0", b"{}", b"7", b"\xff"):
        with journal.open("ab") as file:
            file.write(torn)
        assert list(channel.list_parts("key", upload_id, deadline=soon())) == [first]
    second = send(channel, upload_id, 2, b"def", 3)
    assert list(channel.list_parts("key", upload_id, deadline=soon())) == [first, second]


def test_bytes_past_the_last_part_are_cut_off(channel: FileChannel, upload_id: str) -> None:
    send(channel, upload_id, 2, b"too long", 3)
    parts = [
        send(channel, upload_id, 1, b"abc", 0),
        send(channel, upload_id, 2, b"de", 3),
    ]
    assert channel.complete_upload("key", upload_id, parts, deadline=soon()).size == 5
    assert read(channel, "key") == b"abcde"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda parts: parts[1:],
        lambda parts: [parts[0], parts[2]],
        lambda parts: [*parts, Part(number=4, etag="x", size=3)],
        lambda parts: [parts[0], Part(number=2, etag="x", size=3), parts[2]],
    ],
)
def test_parts_with_a_gap_do_not_make_a_whole(
    channel: FileChannel, upload_id: str, spoil: Any
) -> None:
    parts = [send(channel, upload_id, n, b"abc", (n - 1) * 3) for n in (1, 2, 3)]
    with pytest.raises(ChannelRefused) as caught:
        channel.complete_upload("key", upload_id, spoil(parts), deadline=soon())
    assert caught.value.code == "invalid_parts"
    channel.complete_upload("key", upload_id, parts, deadline=soon())


def test_an_upload_belongs_to_its_key(channel: FileChannel, upload_id: str) -> None:
    with pytest.raises(UploadGone):
        channel.put_part("other", upload_id, 1, Body(b"abc"), offset=0, deadline=soon())
    with pytest.raises(UploadGone):
        channel.complete_upload("other", upload_id, [], deadline=soon())


def test_a_kill_after_the_object_appeared_is_found_as_a_gone_upload(
    channel: FileChannel, upload_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = send(channel, upload_id, 1, b"abc", 0)

    def killed(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(channel._uploads, "_remove", killed)
        with pytest.raises(KeyboardInterrupt):
            channel.complete_upload("key", upload_id, [part], deadline=soon())
    assert read(channel, "key") == b"abc"
    with pytest.raises(UploadGone):
        channel.complete_upload("key", upload_id, [part], deadline=soon())
    with pytest.raises(UploadGone):
        list(channel.list_parts("key", upload_id, deadline=soon()))
    listed = list(channel.list_uploads(deadline=soon()))
    assert [upload.upload_id for upload in listed] == [upload_id], "its rest can be found"
    channel.abort_upload("key", upload_id, deadline=soon())
    assert list(channel.list_uploads(deadline=soon())) == []
    assert read(channel, "key") == b"abc"


def test_a_kill_while_an_upload_is_made_or_dropped_leaves_what_the_sweep_removes(
    channel: FileChannel, upload_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shared.storage.file_uploads.remove_upload_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            channel.abort_upload("key", upload_id, deadline=soon())
        patch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            channel.create_upload("key", deadline=soon())
    assert list(channel.list_uploads(deadline=soon())) == []
    assert len(os.listdir(channel.root.path / "tmp")) == 2
    assert sweep_temporary(channel.root, minimum_age_seconds=3600) == 0
    assert sweep_temporary(channel.root, minimum_age_seconds=0) == 2
    assert os.listdir(channel.root.path / "tmp") == []


def test_the_sweep_keeps_to_its_cap(channel: FileChannel) -> None:
    for number in range(5):
        (channel.root.path / "tmp" / f"old-{number}").write_bytes(b"")
    assert sweep_temporary(channel.root, minimum_age_seconds=0, at_most=3) == 3
    assert len(os.listdir(channel.root.path / "tmp")) == 2


def test_a_deadline_in_the_middle_of_a_part_ends_it(channel: FileChannel, upload_id: str) -> None:
    now = [0.0]
    deadline = Deadline(10, clock=lambda: now[0])

    def pace(count: int) -> None:
        now[0] += 6

    body = Body(bytes(5 * 1024 * 1024), pace=pace)
    with pytest.raises(DeadlinePassed):
        channel.put_part("key", upload_id, 1, body, offset=0, deadline=deadline)
    assert list(channel.list_parts("key", upload_id, deadline=soon())) == []
