"""Bodies on their way into staging, the same on every kind."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import pytest

from shared.core.errors import InvalidError, TooLargeError
from shared.storage.errors import InvalidKey, ObjectMissing
from shared.storage.staging import Staging
from shared.storage.staging_writer import Staged
from tests.conformance.staging.conftest import MIB, PART
from tests.support.content import read, sha256, soon


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def stage(staging: Staging, data: bytes, *, chunk_bytes: int = MIB, **said: Any) -> Staged:
    with staging.writer(**said) as writer:
        for start in range(0, len(data), chunk_bytes):
            writer.write(data[start : start + chunk_bytes])
        return writer.finish()


def nothing_is_kept(staging: Staging) -> bool:
    objects = list(staging.channel.list(deadline=soon()))
    return objects == [] and list(staging.channel.list_uploads(deadline=soon())) == []


def keys(entries: Any) -> list[str]:
    return [entry.key for entry in entries]


@pytest.mark.parametrize("size", [0, 1, 65536, PART, PART + 1, 2 * PART, 2 * PART + 7])
@pytest.mark.parametrize("is_declared", [True, False])
def test_a_body_is_kept_with_its_digests(staging: Staging, size: int, is_declared: bool) -> None:
    data = os.urandom(size)
    said = {"declared_size": size, "sha256": sha256(data), "md5": md5(data)} if is_declared else {}
    staged = stage(staging, data, chunk_bytes=700_001, **said)
    assert (staged.size, staged.sha256, staged.md5) == (size, sha256(data), md5(data))
    assert read(staging, staged.key) == data
    found = staging.head(staged.key, deadline=soon())
    assert found is not None
    assert found.size == size
    assert list(staging.channel.list_uploads(deadline=soon())) == []


def test_a_range_is_read(staging: Staging) -> None:
    data = os.urandom(PART + 10)
    staged = stage(staging, data)
    assert read(staging, staged.key, start=PART - 5, length=10) == data[PART - 5 : PART + 5]
    assert read(staging, staged.key, start=PART + 10) == b""
    assert read(staging, staged.key, start=3, length=0) == b""


def test_a_piece_may_be_larger_than_a_part(staging: Staging) -> None:
    data = os.urandom(2 * PART + MIB)
    assert read(staging, stage(staging, data, chunk_bytes=len(data)).key) == data


def test_bodies_never_share_a_key(staging: Staging) -> None:
    assert stage(staging, b"abc").key != stage(staging, b"abc").key


@pytest.mark.parametrize("size", [3, PART + 3])
@pytest.mark.parametrize("wrong", ["declared_size", "sha256", "md5"])
def test_a_body_that_is_not_what_was_declared_is_not_kept(
    staging: Staging, size: int, wrong: str
) -> None:
    said: dict[str, Any] = {
        "declared_size": {"declared_size": size + 1},
        "sha256": {"sha256": sha256(b"abd")},
        "md5": {"md5": md5(b"abd")},
    }[wrong]
    with pytest.raises(InvalidError) as caught:
        stage(staging, bytes(size), **said)
    assert caught.value.code == f"{wrong.removeprefix('declared_')}_mismatch"
    assert nothing_is_kept(staging)


def test_too_much_is_refused_as_soon_as_it_is_known(staging: Staging) -> None:
    with staging.writer(max_size=PART + 5) as writer:
        writer.write(bytes(PART + 5))
        with pytest.raises(TooLargeError):
            writer.write(b"6")
        assert writer.written_bytes == PART + 5
    assert nothing_is_kept(staging)


@pytest.mark.parametrize("size", [0, 10, 2 * PART])
def test_a_body_may_be_dropped_at_any_time(staging: Staging, size: int) -> None:
    writer = staging.writer()
    writer.write(bytes(size))
    assert list(staging.channel.list(deadline=soon())) == []
    writer.abort()
    writer.abort()
    assert nothing_is_kept(staging)


def test_dropping_a_finished_body_changes_nothing(staging: Staging) -> None:
    writer = staging.writer()
    writer.write(b"abc")
    staged = writer.finish()
    writer.abort()
    assert read(staging, staged.key) == b"abc"


def test_old_files_go_to_the_trash_and_are_still_found(staging: Staging) -> None:
    staged = stage(staging, b"abc")
    assert keys(staging.old(minimum_age_seconds=3600, deadline=soon())) == []
    assert keys(staging.old(minimum_age_seconds=-60, deadline=soon())) == [staged.key]
    assert staging.trash(staged.key) is True
    assert staging.trash(staged.key) is False
    assert keys(staging.old(minimum_age_seconds=-60, deadline=soon())) == []
    assert keys(staging.trashed(minimum_age_seconds=-60, deadline=soon())) == [staged.key]
    assert keys(staging.trashed(minimum_age_seconds=3600, deadline=soon())) == []
    assert read(staging, staged.key, start=1) == b"bc"
    assert staging.head(staged.key, deadline=soon()) is not None


def test_a_file_goes_back_from_the_trash(staging: Staging) -> None:
    staged = stage(staging, b"abc")
    assert staging.restore(staged.key) is False or staging.channel.kind == "s3"
    staging.trash(staged.key)
    assert staging.restore(staged.key) is True
    assert read(staging, staged.key) == b"abc"
    assert keys(staging.old(minimum_age_seconds=-60, deadline=soon())) == [staged.key]
    # On an object store it takes a second look until the trash lets go of it.
    staging.restore(staged.key)
    assert keys(staging.trashed(minimum_age_seconds=-60, deadline=soon())) == []
    assert read(staging, staged.key) == b"abc"


def test_what_is_in_neither_place_cannot_go_back(staging: Staging) -> None:
    staged = stage(staging, b"abc")
    staging.remove(staged.key, deadline=soon())
    assert staging.restore(staged.key) is False


def test_purging_takes_only_what_lies_in_the_trash(staging: Staging) -> None:
    staged = stage(staging, b"abc")
    staging.purge(staged.key, deadline=soon())
    assert read(staging, staged.key) == b"abc"
    staging.trash(staged.key)
    staging.purge(staged.key, deadline=soon())
    assert nothing_is_kept(staging)
    with pytest.raises(ObjectMissing):
        read(staging, staged.key)


@pytest.mark.parametrize("is_in_trash", [False, True])
def test_removing_takes_it_wherever_it_lies(staging: Staging, is_in_trash: bool) -> None:
    staged = stage(staging, b"abc")
    if is_in_trash:
        staging.trash(staged.key)
    for _ in range(2):
        staging.remove(staged.key, deadline=soon())
    assert staging.head(staged.key, deadline=soon()) is None
    assert nothing_is_kept(staging)


@pytest.mark.parametrize("key", ["trash/ab/cd", "elsewhere", "../live/x", ""])
def test_only_its_own_keys_are_moved(staging: Staging, key: str) -> None:
    with pytest.raises(InvalidKey):
        staging.trash(key)
