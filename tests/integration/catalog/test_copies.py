"""Copies and moves: references without bytes, conditions, races, and copies that need a channel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.conditions import Conditions
from shared.catalog.copies import CopyBegun, CopyOrder, copy_object
from shared.catalog.holds import NotStoredYet, place_hold
from shared.catalog.invariants.removal import removal_breaches
from shared.catalog.models import (
    Blob,
    BlobRef,
    Bucket,
    Copy,
    Location,
    LocationState,
    Verdict,
    Version,
    utc_now,
)
from shared.catalog.object_copies import ObjectCopyCommit, read_copy
from shared.catalog.puts import PutAnswer
from shared.catalog.regions import drain
from shared.catalog.removals import PageCommit, look, start_removal
from shared.catalog.review_policy import ReviewPolicy
from shared.core.errors import (
    BacklogError,
    BloxError,
    ConflictError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    SupersededError,
    SwitchedOffError,
    TooLargeError,
)
from shared.outbox.schema import tasks
from tests.support.catalogue import World, together

ANY = Conditions(if_none_match=("*",))


def copy(
    world: World,
    bucket: int,
    source: str,
    target: str,
    *,
    into: int | None = None,
    admit: Callable[[str], None] = lambda _region: None,
    **options: Any,
) -> Any:
    order = CopyOrder(
        source_bucket_id=bucket,
        source_key=source,
        target_bucket_id=bucket if into is None else into,
        target_key=target,
        **options,
    )
    return world.run(lambda session: copy_object(session, world.catalogue, order, admit=admit))


def elsewhere(world: World) -> int:
    """Make a bucket that has no channel in common with the others."""
    bucket = world.bucket("elsewhere")

    def narrow(session: Session) -> None:
        session.execute(sa.update(Location).where(Location.channel == "b").values(channel="a"))
        session.execute(sa.text("UPDATE buckets SET channels = '[\"b\"]' WHERE name = 'elsewhere'"))

    world.run(narrow)
    return bucket


def breaches(world: World) -> list[str]:
    now = world.run(lambda session: session.execute(sa.select(utc_now())).scalar_one())
    return world.run(lambda session: [one.detail for one in removal_breaches(session, now)])


def test_copy_shares_the_content(world: World, bucket: int) -> None:
    source = world.put_stored(bucket, "k")
    answer = copy(world, bucket, "k", "copy")
    assert isinstance(answer, PutAnswer)
    assert (answer.state, answer.etag, answer.task_id) == ("stored", source.etag, None)
    assert len(world.all(Blob)) == 1
    assert len(world.all(BlobRef)) == 2
    read = world.read(bucket, "copy")
    assert (read.content_type, read.metadata) == ("text/plain", {"colour": "red"})
    assert world.delete(bucket, "k").task_id is None
    assert world.delete(bucket, "copy").task_id is not None
    world.check()


def test_copy_may_change_what_is_said_of_the_content(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    copy(world, bucket, "k", "k", metadata={"Colour": "blue"}, content_type="image/png")
    read = world.read(bucket, "k")
    assert (read.content_type, read.metadata, read.generation) == (
        "image/png",
        {"colour": "blue"},
        2,
    )
    with pytest.raises(InvalidError):
        copy(world, bucket, "k", "k")
    world.check()


def test_copy_replaces_and_supersedes_what_was_there(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k", b"source")
    old = world.put_stored(bucket, "target", b"old")
    pending = world.put(bucket, "target", b"pending")
    answer = copy(world, bucket, "k", "target")
    assert world.get(Version, old.version_id).state == "replaced"
    assert world.get(Version, pending.version_id).state == "superseded"
    assert world.task(pending.task_id).state == "cancelled"
    assert len(answer.released) == 1
    assert len(world.open_tasks("delete.blob")) == 1
    world.check()


def test_move_leaves_one_name(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    other = world.bucket("other")
    answer = copy(world, bucket, "k", "moved", into=other, is_move=True)
    with pytest.raises(NotFoundError):
        world.read(bucket, "k")
    assert world.read(other, "moved").version_id == answer.version_id
    assert world.open_tasks("delete.blob") == []
    assert world.all(Blob)[0].state == "live"
    with pytest.raises(InvalidError):
        copy(world, other, "moved", "moved", is_move=True)
    world.check()


def test_move_leaves_what_is_in_review(world: World) -> None:
    bucket = world.bucket("reviewed")
    world.put_stored(bucket, "k", b"old")
    policy = ReviewPolicy()
    world.bucket("reviewed", policy=policy)
    newer = world.put(bucket, "k", b"newer")
    plain = world.bucket("plain")
    copy(world, bucket, "k", "moved", into=plain, is_move=True)
    assert world.get(Version, newer.version_id).state == "reviewing"
    with pytest.raises(NotFoundError):
        world.read(bucket, "k")
    world.check()


def test_source_that_is_not_stored_is_for_later(world: World, bucket: int) -> None:
    world.put(bucket, "k")
    before = world.tables()
    with pytest.raises(NotStoredYet) as refused:
        copy(world, bucket, "k", "copy")
    assert refused.value.code == "source_not_stored"
    for missing in ("never", "never/was"):
        with pytest.raises(NotFoundError):
            copy(world, bucket, missing, "copy")
    assert world.tables() == before


def test_conditions_on_source_and_target(world: World, bucket: int) -> None:
    source = world.put_stored(bucket, "k", b"source")
    target = world.put_stored(bucket, "t", b"target")
    wrong, right = Conditions(if_match=(target.etag,)), Conditions(if_match=(source.etag,))
    for options in (
        {"source_conditions": wrong},
        {"target_conditions": ANY},
        {"target_conditions": right},
    ):
        with pytest.raises(PreconditionError):
            copy(world, bucket, "k", "t", **options)
    assert world.read(bucket, "t").version_id == target.version_id
    copy(world, bucket, "k", "t", source_conditions=right, target_conditions=wrong)
    copy(world, bucket, "k", "new", target_conditions=ANY)
    world.check()


def test_what_the_target_does_not_take(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k", b"content")
    small = world.bucket("small", max_object_bytes=3)
    with pytest.raises(TooLargeError):
        copy(world, bucket, "k", "copy", into=small)
    for bad in ("", "a/../b", "x" * 1025):
        with pytest.raises(InvalidError):
            copy(world, bucket, "k", bad)
    world.run(lambda session: place_hold(session, bucket, "k", reason="r"))
    with pytest.raises(ConflictError) as held:
        copy(world, bucket, "k", "moved", is_move=True)
    assert held.value.code == "object_held"
    copy(world, bucket, "k", "copied")


def test_reviewed_target_wants_a_verdict(world: World, bucket: int) -> None:
    policy = ReviewPolicy()
    reviewed = world.bucket("reviewed", policy=policy)
    source = world.put_stored(bucket, "k")
    with pytest.raises(ConflictError) as refused:
        copy(world, bucket, "k", "copy", into=reviewed)
    assert refused.value.code == "content_not_reviewed"

    def pass_it(session: Session) -> None:
        version = session.get_one(Version, source.version_id)
        session.add(
            Verdict(
                tenant_id=version.tenant_id,
                sha256=version.sha256,
                policy_version=policy.version,
                declared_type=policy.declared_key(version.content_type),
                outcome="pass",
                review_id=1,
                created_at=utc_now(),
            )
        )

    world.run(pass_it)
    assert copy(world, bucket, "k", "copy", into=reviewed).state == "stored"


def test_moves_that_meet_have_one_winner(world: World, bucket: int) -> None:
    """Also crosswise: each waits for both keys, in one order."""
    for turn in range(6):
        world.put_stored(bucket, "a", f"a{turn}".encode())
        world.put_stored(bucket, "b", f"b{turn}".encode())
        answers = together(
            lambda: copy(world, bucket, "a", "b", is_move=True),
            lambda: copy(world, bucket, "b", "a", is_move=True),
            lambda: copy(world, bucket, "a", "c", is_move=True),
            lambda: world.delete(bucket, "b"),
        )
        for answer in answers:
            assert not isinstance(answer, Exception) or isinstance(answer, NotFoundError), answer
        world.check()


def test_copy_and_delete_that_meet_lose_nothing(world: World, bucket: int) -> None:
    for turn in range(8):
        key = f"k{turn}"
        world.put_stored(bucket, key, key.encode())
        copied, _ = together(
            lambda key=key: copy(world, bucket, key, "copy"),
            lambda key=key: world.delete(bucket, key),
        )
        assert isinstance(copied, PutAnswer | NotFoundError)
        world.check()


# -- over channels ------------------------------------------------------------------------------


def place(world: World, channel: str = "b") -> None:
    """Bring the content to a channel, as a replica's task does."""

    def write(session: Session) -> None:
        blob = session.scalars(sa.select(Blob).where(Blob.state == "live")).first()
        assert blob is not None
        session.add(
            Location(
                blob_id=blob.id,
                channel=channel,
                key=f"{channel}/{blob.id}",
                state=LocationState.STORED,
                task_id=0,
                fence=1,
                attempt=0,
                created_at=utc_now(),
            )
        )

    world.run(write)


def commit(world: World, begun: CopyBegun) -> PutAnswer:
    done = ObjectCopyCommit(world.catalogue, copy_id=begun.copy_id, task_id=begun.task_id)

    def work(session: Session) -> PutAnswer:
        done.lock(session)
        answer = done.apply(session)
        session.execute(
            sa.text("UPDATE tasks SET state = 'completed' WHERE id = :id"), {"id": begun.task_id}
        )
        return answer

    return world.run(work)


def begin(world: World, bucket: int, into: int, **options: Any) -> CopyBegun:
    begun = copy(world, bucket, "k", "copy", into=into, **options)
    assert isinstance(begun, CopyBegun)
    return begun


def test_copy_to_another_channel_waits_for_its_bytes(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    into = elsewhere(world)
    begun = begin(world, bucket, into)
    assert world.task(begun.task_id).kind == "replica.object"
    with pytest.raises(NotFoundError):
        world.read(into, "copy")
    # The content stays, whatever becomes of its names.
    world.delete(bucket, "k")
    assert [ref.holder_kind for ref in world.all(BlobRef)] == ["copy"]
    assert breaches(world) == []
    facts = world.run(lambda session: read_copy(session, begun.copy_id))
    assert facts is not None
    assert (facts.channels, facts.is_placed, facts.size_bytes) == (("b",), False, 7)
    place(world)
    assert world.run(lambda session: read_copy(session, begun.copy_id)).is_placed  # type: ignore[union-attr]
    answer = commit(world, begun)
    assert world.read(into, "copy").version_id == answer.version_id
    assert world.get(Copy, begun.copy_id).version_id == answer.version_id
    assert world.run(lambda session: read_copy(session, begun.copy_id)) is None
    assert breaches(world) == []
    world.check()


def test_copy_goes_where_the_work_of_the_targets_region_goes_now(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    into = elsewhere(world)
    world.run(
        lambda session: session.execute(
            sa.text("UPDATE buckets SET region = 'eu' WHERE name = 'elsewhere'")
        )
    )
    world.run(lambda session: drain(session, "eu", to="us", force=True))
    asked: list[str] = []
    begun = begin(world, bucket, into, admit=asked.append)
    assert asked == ["us"], "the backlog is where its task goes"
    task = sa.select(tasks.c.region).where(tasks.c.id == begun.task_id)
    assert world.run(lambda session: session.scalar(task)) == "us"


def test_copy_that_is_not_admitted_leaves_nothing(world: World, bucket: int) -> None:
    def refuse(_region: str) -> None:
        raise BacklogError("no more", retry_after_seconds=1.0)

    world.put_stored(bucket, "k")
    # By reference it makes no task: nobody is asked.
    assert copy(world, bucket, "k", "near", admit=refuse).state == "stored"
    into = elsewhere(world)
    with pytest.raises(BacklogError):
        begin(world, bucket, into, admit=refuse)
    assert world.all(Copy) == []
    world.check()


def test_copy_within_a_bucket_is_a_reference_whatever_channels_it_names(
    world: World, bucket: int
) -> None:
    world.put_stored(bucket, "k")
    world.run(lambda session: session.execute(sa.text("UPDATE buckets SET channels = '[\"b\"]'")))
    assert copy(world, bucket, "k", "moved", is_move=True).state == "stored"
    world.check()


def test_later_delete_of_the_target_wins_also_where_nothing_was(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    into = elsewhere(world)
    begun = begin(world, bucket, into)
    assert not world.delete(into, "copy").existed
    place(world)
    with pytest.raises(SupersededError):
        commit(world, begun)
    with pytest.raises(NotFoundError):
        world.read(into, "copy")


def test_removal_asked_for_before_does_not_end_it(world: World, bucket: int) -> None:
    """What goes is what was there then; the copy was acknowledged after it."""
    world.put_stored(bucket, "k")
    into = elsewhere(world)
    world.put_stored(into, "copy", b"old")
    removal = world.run(
        lambda session: start_removal(
            session, world.catalogue, session.get_one(Bucket, into), prefix=""
        )
    )
    begun = begin(world, bucket, into)
    keys = world.run(lambda session: look(session, removal, after=None)).keys
    task_id = removal.task_id or 0
    page = PageCommit(
        world.catalogue, removal_id=removal.id, keys=keys, after=None, task_id=task_id
    )

    def remove(session: Session) -> int:
        page.lock(session)
        return page.apply(session).deleted_keys

    assert world.run(remove) == 1
    with pytest.raises(NotFoundError):
        world.read(into, "copy")
    place(world)
    written = commit(world, begun)
    assert world.read(into, "copy").version_id == written.version_id


def test_move_asked_for_before_does_not_end_a_copy_to_its_source(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    into = elsewhere(world)
    move = begin(world, bucket, into, is_move=True)
    other = world.put_stored(into, "other", b"other")

    def lies_on(channel: str) -> None:
        at = sa.update(Location).where(Location.blob_id == blob_id).values(channel=channel)
        world.run(lambda session: session.execute(at))

    blob_id = world.get(Version, other.version_id).blob_id
    lies_on("b")
    channels = sa.text("UPDATE buckets SET channels = '[\"a\"]' WHERE name = 'photos'")
    world.run(lambda session: session.execute(channels))
    begun = copy(world, into, "other", "k", into=bucket)
    assert isinstance(begun, CopyBegun)
    place(world)
    commit(world, move)
    with pytest.raises(NotFoundError):
        world.read(bucket, "k")

    lies_on("a")
    written = commit(world, begun)
    assert world.read(bucket, "k").version_id == written.version_id


def test_later_write_to_the_target_wins(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    into = elsewhere(world)
    begun = begin(world, bucket, into)
    later = world.put_stored(into, "copy", b"later")
    place(world)
    with pytest.raises(SupersededError):
        commit(world, begun)
    world.outbox.cancel(begun.task_id, by="test")
    assert world.get(Copy, begun.copy_id).state == "cancelled"
    assert world.read(into, "copy").version_id == later.version_id
    assert breaches(world) == []
    world.check()


def test_move_over_channels_ends_its_source_only_if_it_is_the_same(
    world: World, bucket: int
) -> None:
    world.put_stored(bucket, "k")
    into = elsewhere(world)
    begun = begin(world, bucket, into, is_move=True)
    assert world.read(bucket, "k").state == "stored"
    place(world)
    commit(world, begun)
    with pytest.raises(NotFoundError):
        world.read(bucket, "k")
    assert world.read(into, "copy").size == 7
    world.check()

    world.put_stored(bucket, "k", b"another")
    begun = begin(world, bucket, into, is_move=True)
    world.put_stored(bucket, "k", b"newer")
    with pytest.raises(SupersededError):
        commit(world, begun)


def test_copy_that_was_cancelled_can_be_run_again(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    into = elsewhere(world)
    begun = begin(world, bucket, into)
    world.outbox.cancel(begun.task_id, by="test")
    assert [ref.holder_kind for ref in world.all(BlobRef)] == ["version"]
    world.outbox.retry(begun.task_id, by="test")
    assert world.get(Copy, begun.copy_id).state == "pending"
    assert breaches(world) == []
    place(world)
    commit(world, begun)
    world.check()


def test_cancelled_copy_whose_content_is_gone_is_over(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    into = elsewhere(world)
    begun = begin(world, bucket, into)
    world.outbox.cancel(begun.task_id, by="test")
    world.delete(bucket, "k")
    with world.engine.begin() as connection:
        connection.execute(sa.update(Blob).values(state="deleted"))
    with pytest.raises(BloxError):
        world.outbox.retry(begun.task_id, by="test")
    assert world.get(Copy, begun.copy_id).state == "cancelled"


def test_deployment_without_replicas_says_so(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    into = elsewhere(world)
    world.catalogue = replace(world.catalogue, switched_off=frozenset({"replica"}))
    with pytest.raises(SwitchedOffError):
        copy(world, bucket, "k", "copy", into=into)
    assert world.all(Copy) == []
