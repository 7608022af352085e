"""What must not happen to a directory: leaving it, mistaking it, half-written objects."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.storage import tree
from shared.storage.body import Body
from shared.storage.errors import (
    ChannelFull,
    ChannelRefused,
    ChannelUnavailable,
    InvalidKey,
    KeyTaken,
    ObjectMissing,
    SourceError,
    UploadGone,
)
from shared.storage.file import FileChannel
from tests.support.content import put, read, sha256, soon


@pytest.fixture
def channel(tmp_path: Path) -> FileChannel:
    made = FileChannel(tmp_path / "root", name="disk")
    made.prepare(deadline=soon())
    return made


def leftovers(channel: FileChannel) -> list[str]:
    return os.listdir(channel.root.path / "tmp")


def test_objects_lie_under_their_keys(channel: FileChannel) -> None:
    put(channel, "a/b/c", b"abc")
    assert (channel.root.path / "objects/a/b/c").read_bytes() == b"abc"
    assert leftovers(channel) == []


def test_nothing_is_read_or_made_in_a_directory_without_marker(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects/a").write_bytes(b"foreign")
    channel = FileChannel(tmp_path, name="disk")
    with pytest.raises(ChannelUnavailable, match="mounted"):
        read(channel, "a")
    with pytest.raises(ChannelUnavailable):
        put(channel, "b", b"")
    with pytest.raises(ChannelUnavailable):
        list(channel.list(deadline=soon()))
    with pytest.raises(ChannelUnavailable):
        channel.delete("a", deadline=soon())
    assert sorted(os.listdir(tmp_path)) == ["objects"]


def test_a_directory_that_vanishes_and_comes_back(channel: FileChannel, tmp_path: Path) -> None:
    put(channel, "a", b"abc")
    (tmp_path / "root").rename(tmp_path / "away")
    for call in (
        lambda: read(channel, "a"),
        lambda: put(channel, "b", b""),
        lambda: channel.head("a", deadline=soon()),
        lambda: list(channel.list(deadline=soon())),
        lambda: list(channel.list_uploads(deadline=soon())),
        lambda: channel.probe(deadline=soon()),
    ):
        with pytest.raises(ChannelUnavailable):
            call()
    assert not (tmp_path / "root").exists()
    (tmp_path / "away").rename(tmp_path / "root")
    assert read(channel, "a") == b"abc"


def test_a_file_in_the_place_of_the_directory_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "root").write_bytes(b"")
    with pytest.raises(ChannelUnavailable):
        put(FileChannel(tmp_path / "root", name="disk", create=True), "a", b"")


def test_create_makes_the_directory_at_the_first_use(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path / "deep/root", name="disk", create=True)
    assert not (tmp_path / "deep").exists()
    put(channel, "a", b"abc")
    assert read(channel, "a") == b"abc"


def test_prepare_refuses_a_directory_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ChannelRefused):
        FileChannel(tmp_path, name="disk").prepare(deadline=soon())
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_prepare_goes_on_where_a_kill_left_off(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    channel = FileChannel(tmp_path, name="disk")
    channel.prepare(deadline=soon())
    put(channel, "a", b"abc")
    channel.prepare(deadline=soon())
    assert read(channel, "a") == b"abc"


def outside(tmp_path: Path) -> Path:
    target = tmp_path / "outside"
    target.mkdir()
    (target / "secret").write_bytes(b"secret")
    return target


def test_a_linked_folder_is_never_followed(channel: FileChannel, tmp_path: Path) -> None:
    target = outside(tmp_path)
    (channel.root.path / "objects/link").symlink_to(target, target_is_directory=True)
    with pytest.raises(ChannelRefused):
        read(channel, "link/secret")
    with pytest.raises(ChannelRefused):
        put(channel, "link/new", b"abc")
    with pytest.raises(ChannelRefused):
        channel.delete("link/secret", deadline=soon())
    with pytest.raises(ChannelRefused):
        channel.head("link/secret", deadline=soon())
    with pytest.raises(ChannelRefused):
        list(channel.list(deadline=soon()))
    with pytest.raises(ChannelRefused):
        channel.move("link/secret", "taken")
    assert os.listdir(target) == ["secret"]
    assert leftovers(channel) == []


def test_a_linked_file_is_never_followed(channel: FileChannel, tmp_path: Path) -> None:
    target = outside(tmp_path) / "secret"
    (channel.root.path / "objects/link").symlink_to(target)
    with pytest.raises(ChannelRefused):
        read(channel, "link")
    with pytest.raises(ChannelRefused):
        channel.copy("link", "copy", deadline=soon())
    with pytest.raises(ChannelRefused):
        list(channel.list(deadline=soon()))
    put(channel, "link", b"abc")
    channel.delete("link", deadline=soon())
    assert target.read_bytes() == b"secret"


def test_a_fifo_under_a_key_does_not_hang_its_reader(channel: FileChannel) -> None:
    os.mkfifo(channel.root.path / "objects/pipe")
    with pytest.raises(ChannelRefused):
        read(channel, "pipe")
    with pytest.raises(ChannelRefused):
        list(channel.list(deadline=soon()))


def test_a_listing_that_meets_a_name_it_cannot_tell_fails(channel: FileChannel) -> None:
    put(channel, "fine", b"")
    path = os.fsencode(channel.root.path / "objects") + b"/not-\xff-utf8"
    with open(path, "wb"):
        pass
    with pytest.raises(ChannelUnavailable):
        list(channel.list(deadline=soon()))


def test_an_error_in_the_middle_of_a_listing_comes_out(
    channel: FileChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        put(channel, f"{number}/object", b"")
    real, seen = os.scandir, []

    def failing(folder: Any) -> Any:
        seen.append(folder)
        if len(seen) == 4:
            raise OSError(errno.EIO, "input/output error")
        return real(folder)

    monkeypatch.setattr(os, "scandir", failing)
    entries = channel.list(deadline=soon())
    assert [next(entries).key, next(entries).key] == ["0/object", "1/object"]
    with pytest.raises(ChannelUnavailable):
        next(entries)


def test_an_entry_that_cannot_be_looked_at_fails_the_listing_unless_it_is_gone(
    channel: FileChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(channel, "a", b"")
    put(channel, "b", b"")
    failures: list[OSError] = []

    class Entry:
        def __init__(self, real: Any) -> None:
            self.name, self.is_dir, self.is_file = real.name, real.is_dir, real.is_file
            self._stat = real.stat

        def stat(self, **kwargs: Any) -> os.stat_result:
            if self.name == "a":
                raise failures[0]
            looked_at: os.stat_result = self._stat(**kwargs)
            return looked_at

    real = os.scandir

    @contextmanager
    def scandir(folder: int) -> Iterator[Iterator[Entry]]:
        with real(folder) as entries:
            yield map(Entry, entries)

    monkeypatch.setattr(os, "scandir", scandir)
    failures[:] = [FileNotFoundError(errno.ENOENT, "gone")]
    assert [entry.key for entry in channel.list(deadline=soon())] == ["b"]
    failures[:] = [OSError(errno.EIO, "input/output error")]
    with pytest.raises(ChannelUnavailable):
        list(channel.list(deadline=soon()))


def test_a_key_and_keys_below_it_exclude_each_other(channel: FileChannel) -> None:
    put(channel, "a/b", b"abc")
    with pytest.raises(InvalidKey):
        put(channel, "a", b"")
    with pytest.raises(InvalidKey):
        put(channel, "a/b/c", b"")
    assert read(channel, "a/b") == b"abc"
    assert leftovers(channel) == []


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, ChannelFull),
        (errno.EDQUOT, ChannelFull),
        (errno.EIO, ChannelUnavailable),
        (errno.ESTALE, ChannelUnavailable),
        (errno.EROFS, ChannelRefused),
        (errno.EACCES, ChannelRefused),
    ],
)
def test_a_failing_disk_leaves_nothing_and_says_what_it_was(
    channel: FileChannel,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    error: type[Exception],
) -> None:
    def failing(*args: Any) -> int:
        raise OSError(number, os.strerror(number))

    for name in ("write", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            with pytest.raises(error) as caught:
                put(channel, "a", b"abc")
        assert caught.value.facts["errno"] == number  # type: ignore[attr-defined]
        assert caught.value.facts["channel"] == "disk"  # type: ignore[attr-defined]
        assert channel.head("a", deadline=soon()) is None
        assert leftovers(channel) == []


def test_short_writes_are_gone_on_with(
    channel: FileChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
    put(channel, "a", b"0123456789" * 10)
    assert read(channel, "a") == b"0123456789" * 10


def test_a_body_that_stops_in_the_middle_leaves_nothing(channel: FileChannel) -> None:
    class Stop(Exception):
        pass

    def pace(count: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        channel.put("a", Body(b"abc", pace=pace), sha256=sha256(b"abc"), deadline=soon())
    assert channel.head("a", deadline=soon()) is None
    assert leftovers(channel) == []


def test_a_wrong_sha256_leaves_nothing(channel: FileChannel) -> None:
    with pytest.raises(SourceError):
        channel.put("a", Body(b"abc"), sha256=sha256(b"abd"), deadline=soon())
    assert leftovers(channel) == []


def test_a_taken_key_leaves_nothing_behind(channel: FileChannel) -> None:
    put(channel, "a", b"first")
    with pytest.raises(KeyTaken):
        put(channel, "a", b"second", if_absent=True)
    assert leftovers(channel) == []


def test_the_object_and_its_folders_are_synced_before_put_returns(
    channel: FileChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def path_of(descriptor: int) -> str:
        where = Path(f"/proc/self/fd/{descriptor}").readlink()
        return str(where.relative_to(channel.root.path))

    def fsync(descriptor: int) -> None:
        events.append(f"fsync {path_of(descriptor)}")
        real_fsync(descriptor)

    def rename(*args: Any, **kwargs: Any) -> None:
        events.append(f"rename {args[1]}")
        real_rename(*args, **kwargs)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    put(channel, "x/y/object", b"abc")
    assert events[0].startswith("fsync tmp/")
    assert events[-1] == "fsync objects/x/y"
    before = events[: events.index("rename object")]
    assert {"fsync objects", "fsync objects/x"} <= set(before)
    events.clear()
    put(channel, "x/y/second", b"abc")
    assert len(events) == 3, "folders that are known to be durable cost nothing"


def test_two_writers_of_one_new_folder_do_not_disturb_each_other(channel: FileChannel) -> None:
    durable = tree.DurableFolders()
    with (
        channel.root.area("objects") as objects,
        tree.below(objects, ("new",), make=durable),
        tree.below(objects, ("new", "deep"), make=durable),
    ):
        pass
    put(channel, "new/deep/object", b"abc")
    assert read(channel, "new/deep/object") == b"abc"


def test_no_descriptor_is_left_open(channel: FileChannel, tmp_path: Path) -> None:
    put(channel, "a/b", b"abc")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        put(channel, "a/b", b"abc")
        read(channel, "a/b")
        channel.head("a/b", deadline=soon())
        channel.head("a/c", deadline=soon())
        next(channel.list(deadline=soon()))
        channel.copy("a/b", "a/d", deadline=soon())
        upload = channel.create_upload("big", deadline=soon())
        channel.put_part("big", upload, 1, Body(b"abc"), offset=0, deadline=soon())
        channel.abort_upload("big", upload, deadline=soon())
        for key in ("x", "a"):
            with pytest.raises(ObjectMissing):
                read(channel, key)
        with pytest.raises(UploadGone):
            list(channel.list_parts("big", upload, deadline=soon()))
    assert len(os.listdir("/proc/self/fd")) <= before + 1
