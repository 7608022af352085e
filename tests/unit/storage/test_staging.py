"""Bodies on their way into staging, and the trash."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from shared.core.errors import InvalidError, TooLargeError
from shared.storage.errors import ChannelFull, ChannelUnavailable, InvalidKey, ObjectMissing
from shared.storage.file import FileChannel
from shared.storage.md5 import STEP_BYTES
from shared.storage.staging import Staging
from shared.storage.staging_writer import Staged, StagingWriter
from tests.support.content import read, sha256, soon


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    made = Staging(FileChannel(tmp_path / "staging", name="staging"))
    made.prepare(deadline=soon())
    return made


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def nothing_is_kept(staging: Staging) -> bool:
    root = staging.channel.root.path
    return os.listdir(root / "tmp") == [] and list(staging.channel.list(deadline=soon())) == []


def stage(staging: Staging, data: bytes, *, chunk_bytes: int = 65536, **said: Any) -> Staged:
    with staging.writer(**said) as writer:
        for start in range(0, len(data), chunk_bytes):
            writer.write(data[start : start + chunk_bytes])
        return writer.finish()


@pytest.mark.parametrize("size", [0, 1, 65536, 3 * 1024 * 1024 + 7, 3 * STEP_BYTES + 11])
@pytest.mark.parametrize("chunk_bytes", [65536, 5 * 1024 * 1024])
def test_a_body_is_stored_with_its_digests(staging: Staging, size: int, chunk_bytes: int) -> None:
    data = os.urandom(size)
    staged = stage(
        staging,
        data,
        chunk_bytes=chunk_bytes,
        declared_size=size,
        sha256=sha256(data),
        md5=md5(data),
    )
    assert (staged.size, staged.sha256, staged.md5) == (size, sha256(data), md5(data))
    assert read(staging, staged.key) == data
    found = staging.head(staged.key, deadline=soon())
    assert found is not None
    assert found.size == size
    assert os.listdir(staging.channel.root.path / "tmp") == []


def test_nothing_needs_to_be_declared(staging: Staging) -> None:
    staged = stage(staging, b"abc")
    assert (staged.sha256, staged.md5) == (sha256(b"abc"), md5(b"abc"))


def test_bodies_never_share_a_key(staging: Staging) -> None:
    assert stage(staging, b"abc").key != stage(staging, b"abc").key


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"declared_size": 4}, "size_mismatch"),
        ({"declared_size": 2}, "size_mismatch"),
        ({"sha256": sha256(b"abd")}, "sha256_mismatch"),
        ({"md5": md5(b"abd")}, "md5_mismatch"),
    ],
)
def test_a_body_that_is_not_what_was_declared_is_not_kept(
    staging: Staging, said: dict[str, Any], code: str
) -> None:
    with pytest.raises(InvalidError) as caught:
        stage(staging, b"abc", **said)
    assert caught.value.code == code
    assert nothing_is_kept(staging)


def test_too_much_is_refused_as_soon_as_it_is_known(staging: Staging) -> None:
    with staging.writer(max_size=5) as writer:
        writer.write(b"12345")
        with pytest.raises(TooLargeError):
            writer.write(b"6")
        assert writer.written_bytes == 5
    assert nothing_is_kept(staging)


def test_a_body_may_be_dropped_at_any_time(staging: Staging) -> None:
    for size in (0, 10, 2 * STEP_BYTES):
        writer = staging.writer()
        writer.write(bytes(size))
        writer.abort()
        writer.abort()
        assert nothing_is_kept(staging)


def test_dropping_a_finished_body_changes_nothing(staging: Staging) -> None:
    writer = staging.writer()
    writer.write(b"abc")
    staged = writer.finish()
    writer.abort()
    assert read(staging, staged.key) == b"abc"


def test_a_body_that_cannot_fit_is_refused_before_it_is_sent(staging: Staging) -> None:
    free = staging.free_bytes()
    with pytest.raises(ChannelFull):
        staging.writer(declared_size=free + 2**30)
    with pytest.raises(ChannelFull):
        staging.writer(declared_size=1, reserve_bytes=free + 2**30)
    assert nothing_is_kept(staging)
    assert 0 < staging.used_ratio() < 1


def test_a_body_of_unknown_size_does_not_take_the_room_that_must_stay_free(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.storage.staging_file.LOOK_BYTES", 100_000)
    real, taken = os.fstatvfs, [0]

    def shrinking(descriptor: int) -> os.statvfs_result:
        facts = list(real(descriptor))
        facts[4] -= taken[0] // facts[1]  # blocks that are available, of the fragment's size
        return os.statvfs_result(facts)

    monkeypatch.setattr(os, "fstatvfs", shrinking)
    reserve_bytes = staging.free_bytes() // 2
    with staging.writer(reserve_bytes=reserve_bytes) as writer:
        writer.write(bytes(150_000))
        taken[0] = reserve_bytes + 2**20
        with pytest.raises(ChannelFull):
            writer.write(bytes(150_000))
    assert nothing_is_kept(staging)


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_disk_that_is_full_in_the_middle_keeps_nothing(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(ChannelFull):
            stage(staging, b"abc")
    assert nothing_is_kept(staging)


def test_a_short_write_is_gone_on_with(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:100]))
    data = os.urandom(1000)
    assert read(staging, stage(staging, data, chunk_bytes=300).key) == data


def test_staging_that_is_not_mounted_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(ChannelUnavailable):
        Staging(FileChannel(tmp_path, name="staging")).writer()


def test_a_killed_writer_leaves_what_the_sweep_removes(staging: Staging) -> None:
    writer = staging.writer()
    writer.write(b"abc")
    assert staging.sweep_partial(minimum_age_seconds=3600) == 0
    assert staging.sweep_partial(minimum_age_seconds=0) == 1
    assert nothing_is_kept(staging)
    writer.abort()


def test_a_swept_body_cannot_be_finished(staging: Staging) -> None:
    writer = staging.writer()
    writer.write(b"abc")
    staging.sweep_partial(minimum_age_seconds=0)
    with pytest.raises(ChannelUnavailable):
        writer.finish()
    assert nothing_is_kept(staging)


def keys(entries: Any) -> list[str]:
    return [entry.key for entry in entries]


def test_old_files_go_to_the_trash_and_are_still_found(staging: Staging) -> None:
    staged = stage(staging, b"abc")
    assert keys(staging.old(minimum_age_seconds=3600, deadline=soon())) == []
    assert keys(staging.old(minimum_age_seconds=0, deadline=soon())) == [staged.key]
    assert staging.trash(staged.key) is True
    assert staging.trash(staged.key) is False
    assert keys(staging.old(minimum_age_seconds=0, deadline=soon())) == []
    assert keys(staging.trashed(minimum_age_seconds=0, deadline=soon())) == [staged.key]
    assert read(staging, staged.key, start=1) == b"bc"
    assert staging.head(staged.key, deadline=soon()) is not None


def test_the_age_in_the_trash_begins_with_the_move(staging: Staging) -> None:
    staged = stage(staging, b"abc")
    os.utime(staging.channel.root.path / "objects" / staged.key, (0, 0))
    assert keys(staging.old(minimum_age_seconds=86400, deadline=soon())) == [staged.key]
    staging.trash(staged.key)
    assert keys(staging.trashed(minimum_age_seconds=86400, deadline=soon())) == []


def test_a_file_goes_back_from_the_trash(staging: Staging) -> None:
    staged = stage(staging, b"abc")
    staging.trash(staged.key)
    assert staging.restore(staged.key) is True
    assert staging.restore(staged.key) is False
    assert keys(staging.trashed(minimum_age_seconds=0, deadline=soon())) == []
    assert read(staging, staged.key) == b"abc"


def test_purging_takes_only_what_lies_in_the_trash(staging: Staging) -> None:
    staged = stage(staging, b"abc")
    staging.purge(staged.key, deadline=soon())
    assert read(staging, staged.key) == b"abc"
    staging.trash(staged.key)
    staging.purge(staged.key, deadline=soon())
    assert nothing_is_kept(staging)
    with pytest.raises(ObjectMissing):
        read(staging, staged.key)


def test_removing_takes_it_wherever_it_lies(staging: Staging) -> None:
    for in_trash in (False, True):
        staged = stage(staging, b"abc")
        if in_trash:
            staging.trash(staged.key)
        for _ in range(2):
            staging.remove(staged.key, deadline=soon())
        assert staging.head(staged.key, deadline=soon()) is None
        assert nothing_is_kept(staging)


@pytest.mark.parametrize("key", ["trash/ab/cd", "elsewhere", "../live/x", ""])
def test_only_its_own_keys_are_moved(staging: Staging, key: str) -> None:
    with pytest.raises(InvalidKey):
        staging.trash(key)


def test_the_md5_keeps_up_behind_the_writer(staging: Staging) -> None:
    writer: StagingWriter = staging.writer()
    data = os.urandom(1024 * 1024)
    digest = hashlib.md5()
    for _ in range(40):
        writer.write(data)
        digest.update(data)
    assert writer.finish().md5 == digest.hexdigest()
