"""Content that is there already: attached without a second copy, revived, written by two."""

from __future__ import annotations

import hashlib

import pytest

from shared.catalog.locking import lock_blobs, lock_version
from shared.catalog.models import Blob, BlobRef, BlobState, Location, Version
from shared.catalog.puts import PutAnswer, instant_upload
from shared.catalog.removal import Go, take
from shared.core.errors import ConflictError, NotFoundError
from tests.support.catalogue import World, together


def instantly(world: World, bucket: int, key: str, content: bytes, **options: object) -> PutAnswer:
    return world.run(
        lambda session: instant_upload(
            session,
            world.catalogue,
            bucket,
            key,
            sha256=hashlib.sha256(content).hexdigest(),
            size=len(content),
            **options,  # type: ignore[arg-type]
        )
    )


def test_put_of_known_content_is_current_at_once_without_task_or_second_blob(
    world: World, bucket: int
) -> None:
    first = world.put_stored(bucket, "one", b"same")
    second = world.put(bucket, "two", b"same")
    assert (second.instant, second.state, second.task_id) == (True, "stored", None)
    assert world.get(Version, second.version_id).staging_key is None
    [blob] = world.all(Blob)
    assert {ref.holder_id for ref in world.all(BlobRef)} == {first.version_id, second.version_id}
    assert world.read(bucket, "two").sources == world.read(bucket, "one").sources
    assert blob.state == BlobState.LIVE
    world.check()


def test_instant_upload_takes_the_etag_of_the_known_content(world: World, bucket: int) -> None:
    first = world.put_stored(bucket, "one", b"same")
    answer = instantly(world, bucket, "two", b"same", content_type="image/png")
    assert (answer.etag, answer.size, answer.instant) == (first.etag, 4, True)
    assert world.read(bucket, "two").content_type == "image/png"
    world.check()


def test_unknown_content_must_be_sent(world: World, bucket: int) -> None:
    theirs = world.bucket(tenant="other")
    world.put_stored(theirs, "k", b"same")
    world.put(bucket, "pending", b"same")
    before = world.tables()
    with pytest.raises(NotFoundError) as caught:
        instantly(world, bucket, "k", b"same")
    assert caught.value.code == "content_unknown"
    assert world.tables() == before


def test_a_wrong_size_is_other_content(world: World, bucket: int) -> None:
    world.put_stored(bucket, "one", b"same")
    with pytest.raises(NotFoundError):
        world.run(
            lambda session: instant_upload(
                session,
                world.catalogue,
                bucket,
                "two",
                sha256=hashlib.sha256(b"same").hexdigest(),
                size=5,
            )
        )


def test_instant_overwrite_replaces_the_stored_version_and_supersedes_the_pending_one(
    world: World, bucket: int
) -> None:
    world.put_stored(bucket, "known", b"known")
    old = world.put_stored(bucket, "k", b"old")
    pending = world.put(bucket, "k", b"pending")
    world.put(bucket, "k", b"known")
    assert world.get(Version, old.version_id).state == "replaced"
    assert world.get(Version, pending.version_id).state == "superseded"
    assert world.task(pending.task_id).error_code == "superseded"
    assert world.get(Blob, world.get(Version, old.version_id).blob_id).state == "condemned"
    world.check()


def test_overwrite_with_the_same_content_keeps_the_blob_alive(world: World, bucket: int) -> None:
    old = world.put_stored(bucket, "k", b"same")
    new = world.put(bucket, "k", b"same")
    assert new.instant
    assert world.get(Version, old.version_id).state == "replaced"
    [blob] = world.all(Blob)
    assert (blob.state, blob.generation) == (BlobState.LIVE, 1)
    assert world.open_tasks("delete.blob") == []
    world.check()


def test_condemned_content_lives_again_and_its_delete_task_finds_that_out(
    world: World, bucket: int
) -> None:
    world.put_stored(bucket, "k", b"same")
    gone = world.delete(bucket, "k")
    [blob] = world.all(Blob)
    assert (blob.state, blob.generation) == (BlobState.CONDEMNED, 2)
    assert world.put(bucket, "k", b"same").instant
    [blob] = world.all(Blob)
    assert (blob.state, blob.generation, blob.delete_after) == (BlobState.LIVE, 2, None)
    assert not isinstance(_take(world, blob, gone.task_id or 0, generation=2), Go)
    # Condemned once more: another generation, another task.
    again = world.delete(bucket, "k")
    [blob] = world.all(Blob)
    assert (blob.generation, again.task_id != gone.task_id) == (3, True)
    assert not isinstance(_take(world, blob, gone.task_id or 0, generation=2), Go)
    assert isinstance(_take(world, blob, again.task_id or 0, generation=3), Go)


def test_content_that_is_being_deleted_is_written_anew(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k", b"same")
    gone = world.delete(bucket, "k")
    [blob] = world.all(Blob)
    assert isinstance(_take(world, blob, gone.task_id or 0, generation=2), Go)
    answer = world.put(bucket, "k", b"same")
    assert not answer.instant
    with pytest.raises(NotFoundError):
        instantly(world, bucket, "other", b"same")
    assert world.store(answer.version_id)
    assert {blob.state for blob in world.all(Blob)} == {BlobState.DELETING, BlobState.LIVE}
    world.check()


def test_nobody_attaches_to_a_blob_that_is_not_live(world: World, bucket: int) -> None:
    from shared.catalog.blobs import add_reference
    from shared.catalog.models import HolderKind

    answer = world.put(bucket, "k")
    blob_id = world.get(Version, answer.version_id).blob_id
    with pytest.raises(ConflictError):
        world.run(
            lambda session: add_reference(
                session, lock_blobs(session, [blob_id])[blob_id], HolderKind.HOLD, 1
            )
        )
    assert world.all(BlobRef) == []


def test_content_without_a_verified_copy_is_not_attached(world: World, bucket: int) -> None:
    world.put_stored(bucket, "one", b"same")
    with world.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE locations SET state = 'condemned'")
    assert not world.put(bucket, "two", b"same").instant


def test_uploads_of_one_content_that_commit_at_once_share_the_first_blob(
    world: World, bucket: int
) -> None:
    for turn in range(4):
        content = f"content {turn}".encode()
        answers = [world.put(bucket, f"{turn}/{n}", content) for n in range(5)]
        intents = [world.intend(answer.version_id) for answer in answers]
        stored = together(
            *(
                lambda answer=answer, intent=intent: world.store(
                    answer.version_id, location_id=intent
                )
                for answer, intent in zip(answers, intents, strict=True)
            )
        )
        assert stored == [True] * 5
        blobs = {world.get(Version, answer.version_id).blob_id for answer in answers}
        assert len(blobs) == 1
        assert len(world.open_tasks("delete.blob")) == 4 * (turn + 1)
        world.check()
    losers = [blob for blob in world.all(Blob) if blob.state != BlobState.LIVE]
    assert {blob.state for blob in losers} == {BlobState.DELETING}
    assert sorted(blob.delete_owner or 0 for blob in losers) == world.open_tasks("delete.blob")


def test_a_commit_of_popular_content_locks_its_own_blob_and_the_live_one_only(
    world: World, bucket: int
) -> None:
    answers = [world.put(bucket, f"{n}", b"popular") for n in range(20)]
    before = world.run(lambda s: len(lock_version(s, answers[0].version_id, content=True).blobs))
    world.store(answers[0].version_id)
    after = world.run(lambda s: len(lock_version(s, answers[1].version_id, content=True).blobs))
    assert (before, after) == (20, 2)


def test_the_loser_revives_a_winner_that_is_condemned_meanwhile(world: World, bucket: int) -> None:
    late = world.put(bucket, "late", b"same")
    world.put_stored(bucket, "early", b"same")
    world.delete(bucket, "early")
    assert world.store(late.version_id)
    states = sorted(blob.state for blob in world.all(Blob))
    assert states == [BlobState.DELETING, BlobState.LIVE]
    world.check()


def test_last_reference_and_new_attachment_that_meet_leave_the_bytes(
    world: World, bucket: int
) -> None:
    world.put_stored(bucket, "k0", b"same")
    for turn in range(10):
        _, attached = together(
            lambda turn=turn: world.delete(bucket, f"k{turn}"),
            lambda turn=turn: world.put(bucket, f"k{turn + 1}", b"same"),
        )
        assert attached.instant
        [blob] = world.all(Blob)
        assert blob.state == BlobState.LIVE
        world.check()


def test_delete_worker_and_new_attachment_that_meet_never_lose_the_bytes(
    world: World, bucket: int
) -> None:
    for turn in range(8):
        content = f"content {turn}".encode()
        world.put_stored(bucket, "k", content)
        gone = world.delete(bucket, "k")
        [blob] = [blob for blob in world.all(Blob) if blob.state == BlobState.CONDEMNED]
        attached, taken = together(
            lambda content=content: world.put(bucket, "k", content),
            lambda blob=blob, gone=gone: _take(
                world, blob, gone.task_id or 0, generation=blob.generation
            ),
        )
        assert attached.instant != isinstance(taken, Go)
        world.check()
        world.delete(bucket, "k")
        with world.engine.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE blobs SET state = 'deleted' WHERE state IN ('condemned', 'staged')"
            )


def test_swaps_of_two_contents_in_opposite_order_do_not_deadlock(world: World, bucket: int) -> None:
    world.put_stored(bucket, "a", b"A")
    world.put_stored(bucket, "b", b"B")
    for turn in range(10):
        first, second = (b"B", b"A") if turn % 2 == 0 else (b"A", b"B")
        answers = together(
            lambda first=first: world.put(bucket, "a", first),
            lambda second=second: world.put(bucket, "b", second),
        )
        assert [answer.instant for answer in answers] == [True, True]
        world.check()
    assert len(world.all(Location)) == 2


def _take(world: World, blob: Blob, task_id: int, *, generation: int) -> object:
    return world.run(
        lambda session: take(session, blob_id=blob.id, generation=generation, task_id=task_id)
    )
