"""Uploads that end without their handler: acknowledged bytes stay readable and can be retried."""

from __future__ import annotations

import pytest

from shared.catalog.models import Blob, Version
from shared.core.errors import ConflictError
from shared.outbox.ends import End, Ends
from shared.outbox.states import State
from tests.support.catalogue import World, together


def fail(world: World, task_id: int | None, code: str = "crashed") -> None:
    world.set_running(task_id or 0)
    Ends(world.outbox.context, world.outbox).end(
        task_id or 0, lambda _row: End(state=State.FAILED, code=code)
    )


def test_a_failed_upload_is_served_from_staging(world: World, bucket: int) -> None:
    answer = world.put(bucket, "k")
    fail(world, answer.task_id)
    version = world.get(Version, answer.version_id)
    assert (version.state, version.error_code) == ("failed", "crashed")
    readable = world.read(bucket, "k")
    assert (readable.version_id, readable.state) == (version.id, "failed")
    assert [source.key for source in readable.sources] == [version.staging_key]
    world.check()


def test_a_cancelled_upload_is_served_from_staging(world: World, bucket: int) -> None:
    answer = world.put(bucket, "k")
    world.outbox.cancel(answer.task_id or 0, by="operator", reason="test")
    assert world.read(bucket, "k").state == "failed"
    world.check()


def test_a_failed_upload_can_be_retried_and_stored(world: World, bucket: int) -> None:
    answer = world.put(bucket, "k")
    fail(world, answer.task_id)
    world.outbox.retry(answer.task_id or 0, by="operator", reason="test")
    assert world.get(Version, answer.version_id).state == "pending"
    world.check()
    assert world.store(answer.version_id)
    world.check()


def test_a_failed_version_serves_over_an_older_stored_one(world: World, bucket: int) -> None:
    old = world.put_stored(bucket, "k", b"old")
    new = world.put(bucket, "k", b"new")
    fail(world, new.task_id)
    assert world.read(bucket, "k").version_id == new.version_id
    assert world.get(Version, old.version_id).state == "stored"
    world.check()


@pytest.mark.parametrize("end", ["overwritten", "deleted", "stored over"])
def test_a_failed_upload_that_is_over_cannot_be_retried(
    world: World, bucket: int, end: str
) -> None:
    old = world.put(bucket, "k", b"old")
    fail(world, old.task_id)
    if end == "deleted":
        world.delete(bucket, "k")
    else:
        new = world.put(bucket, "k", b"new")
        if end == "stored over":
            world.store(new.version_id)
    before = world.tables()
    with pytest.raises(ConflictError):
        world.outbox.retry(old.task_id or 0, by="operator", reason="test")
    assert world.tables() == before


def test_a_superseded_task_cannot_be_retried(world: World, bucket: int) -> None:
    old = world.put(bucket, "k", b"old")
    world.put(bucket, "k", b"new")
    with pytest.raises(ConflictError):
        world.outbox.retry(old.task_id or 0, by="operator", reason="test")
    world.check()


def test_a_stored_upload_cannot_be_retried_by_force(world: World, bucket: int) -> None:
    answer = world.put_stored(bucket, "k")
    with pytest.raises(ConflictError):
        world.outbox.retry(answer.task_id or 0, by="operator", reason="test", force=True)
    world.check()


def test_a_task_ended_as_superseded_without_anything_newer_keeps_the_bytes(
    world: World, bucket: int
) -> None:
    answer = world.put(bucket, "k")
    world.set_running(answer.task_id or 0)
    Ends(world.outbox.context, world.outbox).end(
        answer.task_id or 0, lambda _row: End(state=State.CANCELLED, code="superseded")
    )
    assert world.read(bucket, "k").state == "failed"
    world.check()


def test_cancel_and_overwrite_that_meet_end_the_version_once(world: World, bucket: int) -> None:
    for turn in range(6):
        old = world.put(bucket, "k", f"old {turn}".encode())
        _, new = together(
            lambda old=old: world.outbox.cancel(old.task_id or 0, by="operator", reason="test"),
            lambda turn=turn: world.put(bucket, "k", f"new {turn}".encode()),
        )
        assert world.get(Version, old.version_id).state == "superseded"
        assert world.read(bucket, "k").version_id == new.version_id
        world.check()


def test_cancel_and_commit_that_meet_leave_one_outcome(world: World, bucket: int) -> None:
    for turn in range(6):
        answer = world.put(bucket, f"k{turn}", f"{turn}".encode())
        intent = world.intend(answer.version_id)
        together(
            lambda answer=answer: world.outbox.cancel(
                answer.task_id or 0, by="operator", reason="test"
            ),
            lambda answer=answer, intent=intent: world.store(answer.version_id, location_id=intent),
        )
        version = world.get(Version, answer.version_id)
        assert version.state in ("stored", "failed")
        assert (world.get(Blob, version.blob_id).state == "live") == (version.state == "stored")
        world.check()
