"""A DELETE's commit, around versions in every state."""

from __future__ import annotations

import pytest

from shared.catalog.conditions import Conditions
from shared.catalog.models import Blob, BlobRef, ObjectRow, Version
from shared.catalog.review_policy import ReviewPolicy
from shared.core.errors import NotFoundError, PreconditionError
from tests.support.catalogue import World, together


def test_delete_of_a_stored_version_condemns_its_bytes_after_the_grace(blox_url: str) -> None:
    world = World(blox_url, grace_seconds=3600.0)
    bucket = world.bucket()
    old = world.put_stored(bucket, "k")
    answer = world.delete(bucket, "k")
    assert (answer.existed, answer.version_id) == (True, old.version_id)
    task = world.task(answer.task_id)
    assert (task.kind, task.state) == ("delete.blob", "scheduled")
    [blob] = world.all(Blob)
    assert blob.delete_after is not None
    assert 0 <= (task.due_at - blob.delete_after).total_seconds() < 5
    with pytest.raises(NotFoundError):
        world.read(bucket, "k")
    world.check()
    world.close()


def test_delete_of_a_pending_version_ends_its_task(world: World, bucket: int) -> None:
    old = world.put(bucket, "k")
    assert world.delete(bucket, "k").existed
    version = world.get(Version, old.version_id)
    assert (version.state, version.staging_key) == ("deleted", None)
    assert world.task(old.task_id).state == "cancelled"
    assert not world.store(old.version_id, location_id=1)
    with pytest.raises(NotFoundError):
        world.read(bucket, "k")
    world.check()


def test_delete_ends_the_stored_version_and_the_pending_one_over_it(
    world: World, bucket: int
) -> None:
    old = world.put_stored(bucket, "k", b"old")
    new = world.put(bucket, "k", b"new")
    answer = world.delete(bucket, "k")
    assert answer.version_id == new.version_id
    assert {world.get(Version, v.version_id).state for v in (old, new)} == {"deleted"}
    assert world.all(BlobRef) == []
    world.check()


def test_delete_of_a_failed_version(world: World, bucket: int) -> None:
    old = world.put(bucket, "k")
    world.outbox.cancel(old.task_id or 0, by="operator", reason="test")
    assert world.read(bucket, "k").state == "failed"
    assert world.delete(bucket, "k").existed
    assert world.get(Version, old.version_id).state == "deleted"
    with pytest.raises(NotFoundError):
        world.read(bucket, "k")
    world.check()


def test_delete_of_a_version_in_review(world: World) -> None:
    bucket = world.bucket("reviewed", policy=ReviewPolicy())
    old = world.put(bucket, "k")
    answer = world.delete(bucket, "k")
    assert (answer.existed, answer.version_id) == (True, None)
    assert world.get(Version, old.version_id).state == "deleted"
    assert world.task(old.task_id).state == "cancelled"
    world.check()


def test_delete_leaves_bytes_that_another_name_needs(world: World, bucket: int) -> None:
    world.put_stored(bucket, "one", b"same")
    world.put(bucket, "two", b"same")
    assert world.delete(bucket, "one").task_id is None
    [blob] = world.all(Blob)
    assert blob.state == "live"
    assert world.delete(bucket, "two").task_id is not None
    world.check()


def test_delete_of_what_is_not_there_changes_nothing(world: World, bucket: int) -> None:
    assert not world.delete(bucket, "never").existed
    assert world.all(ObjectRow) == []
    world.put_stored(bucket, "k")
    world.delete(bucket, "k")
    before = world.tables()
    assert not world.delete(bucket, "k").existed
    assert world.tables() == before


def test_put_after_delete_is_a_newer_generation(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k", b"one")
    world.delete(bucket, "k")
    answer = world.put(bucket, "k", b"two")
    assert answer.generation == 3
    assert world.read(bucket, "k").version_id == answer.version_id
    world.check()


def test_delete_and_upload_commit_that_meet_leave_nothing_readable(
    world: World, bucket: int
) -> None:
    for turn in range(8):
        old = world.put(bucket, f"k{turn}", f"{turn}".encode())
        intent = world.intend(old.version_id)
        together(
            lambda turn=turn: world.delete(bucket, f"k{turn}"),
            lambda old=old, intent=intent: world.store(old.version_id, location_id=intent),
        )
        with pytest.raises(NotFoundError):
            world.read(bucket, f"k{turn}")
        world.check()


def test_delete_and_put_that_meet_are_one_before_the_other(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k", b"first")
    for turn in range(8):
        deleted, put = together(
            lambda: world.delete(bucket, "k"),
            lambda turn=turn: world.put(bucket, "k", f"{turn}".encode()),
        )
        assert deleted.existed
        if deleted.version_id == put.version_id:
            with pytest.raises(NotFoundError):
                world.read(bucket, "k")
            world.put(bucket, "k", f"again {turn}".encode())
        else:
            assert world.read(bucket, "k").version_id == put.version_id
        world.check()


def test_many_deletes_end_a_version_once(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    answers = together(*(lambda: world.delete(bucket, "k") for _ in range(6)))
    assert sum(answer.existed for answer in answers) == 1
    assert len(world.open_tasks("delete.blob")) == 1
    world.check()


def test_conditions_of_a_delete(world: World, bucket: int) -> None:
    answer = world.put(bucket, "k")
    with pytest.raises(PreconditionError):
        world.delete(bucket, "k", conditions=Conditions(if_match=("other",)))
    assert world.read(bucket, "k").version_id == answer.version_id
    assert world.delete(bucket, "k", conditions=Conditions(if_match=(answer.etag,))).existed
    with pytest.raises(PreconditionError):
        world.delete(bucket, "k", conditions=Conditions(if_match=("*",)))
