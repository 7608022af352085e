"""A PUT's commit: what it writes, what it supersedes, and what two of them do to each other."""

from __future__ import annotations

import pytest

from shared.catalog.buckets import delete_bucket
from shared.catalog.conditions import Conditions
from shared.catalog.models import Blob, BlobRef, ObjectRow, Version
from shared.core.errors import (
    InvalidError,
    NotFoundError,
    PreconditionError,
    TooLargeError,
)
from tests.support.catalogue import TENANT, World, together


def test_put_writes_version_blob_object_and_task(world: World, bucket: int) -> None:
    answer = world.put(bucket, "a/b.txt", b"hello")
    version = world.get(Version, answer.version_id)
    assert (version.state, version.generation, version.size_bytes) == ("pending", 1, 5)
    assert version.user_metadata == {"colour": "red"}
    assert world.get(Blob, version.blob_id).state == "staged"
    task = world.task(answer.task_id)
    assert (task.kind, task.state, task.tenant_id) == ("upload.store", "pending", TENANT)
    assert not answer.instant
    assert answer.modified_at == version.created_at
    readable = world.read(bucket, "a/b.txt")
    assert (readable.version_id, readable.etag) == (version.id, answer.etag)
    assert [(source.channel, source.key) for source in readable.sources] == [
        (None, version.staging_key)
    ]
    world.check()


def test_stored_version_is_read_from_the_bucket_s_first_channel(world: World, bucket: int) -> None:
    answer = world.put(bucket, "k")
    second = world.intend(answer.version_id, channel="b")
    first = world.intend(answer.version_id, channel="a")
    assert world.store(answer.version_id, location_id=second)
    assert [source.channel for source in world.read(bucket, "k").sources] == ["b"]
    with world.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE locations SET state = 'stored' WHERE id = {first}")
    assert [source.channel for source in world.read(bucket, "k").sources] == ["a", "b"]


def test_etag_size_and_time_do_not_change_when_a_version_is_stored(
    world: World, bucket: int
) -> None:
    answer = world.put(bucket, "k")
    before = world.read(bucket, "k")
    world.store(answer.version_id)
    after = world.read(bucket, "k")
    assert (before.etag, before.size, before.modified_at, before.content_type) == (
        after.etag,
        after.size,
        after.modified_at,
        after.content_type,
    )
    assert (before.state, after.state) == ("pending", "stored")
    world.check()


def test_overwrite_of_a_pending_version_supersedes_it_and_its_waiting_task(
    world: World, bucket: int
) -> None:
    old = world.put(bucket, "k", b"one")
    new = world.put(bucket, "k", b"two")
    assert new.generation == 2
    version = world.get(Version, old.version_id)
    assert (version.state, version.staging_key) == ("superseded", None)
    task = world.task(old.task_id)
    assert (task.state, task.error_code) == ("cancelled", "superseded")
    # No byte was ever on its way to a channel: nothing is left to delete.
    assert world.get(Blob, version.blob_id).state == "deleted"
    assert world.open_tasks("delete.blob") == []
    assert world.read(bucket, "k").version_id == new.version_id
    assert not world.store(old.version_id, location_id=1)
    world.check()


def test_overwrite_asks_a_running_upload_to_stop_and_takes_its_bytes_away(
    world: World, bucket: int
) -> None:
    old = world.put(bucket, "k", b"one")
    world.set_running(old.task_id or 0)
    intent = world.intend(old.version_id)
    world.put(bucket, "k", b"two")
    task = world.task(old.task_id)
    assert (task.state, bool(task.cancel_requested)) == ("running", True)
    blob = world.get(Blob, world.get(Version, old.version_id).blob_id)
    [delete_task] = world.open_tasks("delete.blob")
    assert (blob.state, blob.delete_owner, blob.generation) == ("deleting", delete_task, 2)
    assert world.task(delete_task).payload["p"] == {"blob_id": blob.id, "generation": 2}
    # The late commit of the execution that goes on writes nothing.
    before = world.tables()
    assert not world.store(old.version_id, location_id=intent)
    assert world.tables() == before
    world.check()


def test_overwrite_of_a_stored_version_serves_it_until_the_next_put_and_replaces_it_at_its_commit(
    world: World, bucket: int
) -> None:
    old = world.put_stored(bucket, "k", b"one")
    new = world.put(bucket, "k", b"two")
    assert world.get(Version, old.version_id).state == "stored"
    assert world.read(bucket, "k").version_id == new.version_id
    world.check()
    world.store(new.version_id)
    replaced = world.get(Version, old.version_id)
    assert replaced.state == "replaced"
    blob = world.get(Blob, replaced.blob_id)
    assert (blob.state, blob.generation) == ("condemned", 2)
    [delete_task] = world.open_tasks("delete.blob")
    assert world.task(delete_task).dedupe_key == f"blob:{blob.id}:2"
    world.check()


def test_overwrite_of_a_failed_version_supersedes_it(world: World, bucket: int) -> None:
    old = world.put(bucket, "k", b"one")
    world.outbox.cancel(old.task_id or 0, by="operator", reason="test")
    assert world.get(Version, old.version_id).state == "failed"
    assert world.read(bucket, "k").version_id == old.version_id
    world.put(bucket, "k", b"two")
    assert world.get(Version, old.version_id).state == "superseded"
    world.check()


def test_two_first_puts_of_one_key_share_the_object_row(world: World, bucket: int) -> None:
    for turn in range(8):
        key = f"race-{turn}"
        answers = together(
            lambda key=key: world.put(bucket, key, b"one"),
            lambda key=key: world.put(bucket, key, b"two"),
        )
        assert sorted(answer.generation for answer in answers) == [1, 2]
        newest = max(answers, key=lambda answer: answer.generation)
        assert world.read(bucket, key).version_id == newest.version_id
    assert len(world.all(ObjectRow)) == 8
    assert len(world.open_tasks("upload.store")) == 8
    world.check()


def test_many_puts_of_one_key_leave_one_version_and_one_task(world: World, bucket: int) -> None:
    answers = together(
        *(lambda n=n: world.put(bucket, "k", f"content {n}".encode()) for n in range(8))
    )
    assert sorted(answer.generation for answer in answers) == list(range(1, 9))
    assert len(world.open_tasks("upload.store")) == 1
    world.check()


def test_puts_and_upload_commits_that_meet_never_go_back(world: World, bucket: int) -> None:
    for turn in range(8):
        old = world.put(bucket, "k", f"old {turn}".encode())
        intent = world.intend(old.version_id)
        new, stored = together(
            lambda turn=turn: world.put(bucket, "k", f"new {turn}".encode()),
            lambda old=old, intent=intent: world.store(old.version_id, location_id=intent),
        )
        assert world.read(bucket, "k").version_id == new.version_id
        assert world.get(Version, old.version_id).state == ("stored" if stored else "superseded")
        world.check()


def test_if_none_match_lets_one_of_many_create_the_key(world: World, bucket: int) -> None:
    only_new = Conditions(if_none_match=("*",))
    answers = together(
        *(
            lambda n=n: world.put(bucket, "k", f"{n}".encode(), conditions=only_new)
            for n in range(6)
        )
    )
    assert sum(isinstance(answer, PreconditionError) for answer in answers) == 5
    assert len(world.all(Version)) == 1
    world.check()


def test_if_match_lets_one_of_many_replace_the_version(world: World, bucket: int) -> None:
    first = world.put(bucket, "k", b"first")
    seen = Conditions(if_match=(first.etag,))
    answers = together(
        *(lambda n=n: world.put(bucket, "k", f"{n}".encode(), conditions=seen) for n in range(6))
    )
    assert sum(isinstance(answer, PreconditionError) for answer in answers) == 5
    assert len(world.all(Version)) == 2
    world.check()


JUDGED = [
    (Conditions(if_match=("*",)), True),
    (Conditions(if_match=("other",)), False),
    (Conditions(if_none_match=("other",)), True),
    (Conditions(if_none_match=("*",)), False),
    (Conditions(if_match=()), False),
]


def test_conditions_are_judged_by_what_a_get_shows(world: World, bucket: int) -> None:
    world.put(bucket, "k", b"first")
    for conditions, holds in JUDGED:
        before = world.tables()
        if holds:
            world.put(bucket, "k", b"next", conditions=conditions)
            assert world.tables() != before
            continue
        with pytest.raises(PreconditionError):
            world.put(bucket, "k", b"next", conditions=conditions)
        assert world.tables() == before


def test_if_match_on_a_key_that_is_not_there_does_not_hold(world: World, bucket: int) -> None:
    with pytest.raises(PreconditionError):
        world.put(bucket, "k", conditions=Conditions(if_match=("*",)))
    assert world.all(ObjectRow) == []


def test_tenants_share_nothing(world: World, bucket: int) -> None:
    theirs = world.bucket(tenant="other")
    world.put_stored(bucket, "k", b"same")
    answer = world.put(theirs, "k", b"same")
    assert not answer.instant
    world.store(answer.version_id)
    assert len({ref.blob_id for ref in world.all(BlobRef)}) == 2
    world.check()


BAD_KEYS = ["", "a/../b", "..", ".", "a/./b", "nul\0", "x" * 1025, "é" * 513, "\ud800"]
ODD_KEYS = [
    "x" * 1024,
    "é" * 512,
    " ",
    "a..b",
    "...",
    "//",
    "ключ/文件 ",
    "%2e",
    "a\nb",
    "\U0001f600",
]


def test_bad_keys_are_refused_and_nothing_is_written(world: World, bucket: int) -> None:
    before = world.tables()
    for key in BAD_KEYS:
        with pytest.raises(InvalidError) as caught:
            world.put(bucket, key)
        assert caught.value.code == "key_invalid"
    assert world.tables() == before


def test_odd_keys_are_kept_exactly(world: World, bucket: int) -> None:
    for key in ODD_KEYS:
        answer = world.put(bucket, key)
        assert world.read(bucket, key).version_id == answer.version_id
    assert sorted(row.key for row in world.all(ObjectRow)) == sorted(ODD_KEYS)


def test_keys_differ_by_case_blanks_and_composition(world: World, bucket: int) -> None:
    keys = ["a", "A", "a ", "a  ", "é", "e\u0301", "ａ"]
    for key in keys:
        world.put(bucket, key, key.encode())
    assert sorted(row.key for row in world.all(ObjectRow)) == sorted(keys)
    assert all(world.read(bucket, key).size == len(key.encode()) for key in keys)


def test_size_limit_of_the_bucket(world: World) -> None:
    small = world.bucket("small", max_object_bytes=3)
    world.put(small, "k", b"123")
    with pytest.raises(TooLargeError):
        world.put(small, "k", b"1234")


def test_put_into_a_bucket_that_is_gone(world: World, bucket: int) -> None:
    world.run(lambda session: delete_bucket(session, TENANT, "photos"))
    with pytest.raises(NotFoundError) as caught:
        world.put(bucket, "k")
    assert caught.value.code == "bucket_not_found"
    assert world.all(Version) == []


def test_a_put_that_meets_the_end_of_its_bucket_is_before_or_after_it(world: World) -> None:
    for turn in range(6):
        name = f"bucket-{turn}"
        bucket = world.bucket(name)
        put, deleted = together(
            lambda bucket=bucket: world.put(bucket, "k"),
            lambda name=name: world.run(lambda session: delete_bucket(session, TENANT, name)),
        )
        is_in = not isinstance(put, Exception)
        assert isinstance(deleted, Exception) == is_in, (put, deleted)
        assert len([v for v in world.all(Version) if v.bucket_id == bucket]) == int(is_in)


def test_empty_object(world: World, bucket: int) -> None:
    answer = world.put_stored(bucket, "empty", b"")
    assert (answer.size, world.read(bucket, "empty").size) == (0, 0)
    world.check()
