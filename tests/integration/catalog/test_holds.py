"""Holds: the name cannot be deleted, the content outlives every name, and time ends it."""

from __future__ import annotations

import datetime as dt

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.holds import (
    NotStoredYet,
    expire_hold,
    overdue_holds,
    place_hold,
    release_hold,
)
from shared.catalog.invariants.removal import removal_breaches
from shared.catalog.models import Blob, BlobRef, Hold, HoldState, utc_now
from shared.catalog.puts import instant_upload
from shared.core.errors import ConflictError, InvalidError, NotFoundError
from tests.support.catalogue import TENANT, World, staged, together


def hold(world: World, bucket: int, key: str = "k", until: dt.datetime | None = None) -> int:
    return world.run(
        lambda session: place_hold(session, bucket, key, reason="a lawsuit", until=until).id
    )


def release(world: World, hold_id: int) -> str:
    return str(
        world.run(
            lambda session: release_hold(session, world.catalogue, hold_id, tenant_id=TENANT).state
        )
    )


def breaches(world: World) -> list[str]:
    now = world.run(lambda session: session.execute(sa.select(utc_now())).scalar_one())
    return world.run(lambda session: [one.detail for one in removal_breaches(session, now)])


def test_held_object_cannot_be_deleted_until_it_is_released(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    held = hold(world, bucket)
    before = world.tables()
    with pytest.raises(ConflictError) as refused:
        world.delete(bucket, "k")
    assert refused.value.code == "object_held"
    assert world.tables() == before
    assert release(world, held) == "released"
    assert world.delete(bucket, "k").existed
    assert world.all(Blob)[0].state == "condemned"
    world.check()


def test_overwritten_content_stays_while_it_is_held(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k", b"old")
    held = hold(world, bucket)
    world.put_stored(bucket, "k", b"new")
    blobs = {blob.id: blob.state for blob in world.all(Blob)}
    assert set(blobs.values()) == {"live"}
    assert breaches(world) == []
    # The name now has a content that nobody holds.
    assert world.delete(bucket, "k").existed

    facts = staged(b"old")
    answer = world.run(
        lambda session: instant_upload(
            session, world.catalogue, bucket, "back", sha256=facts.sha256, size=facts.size
        )
    )
    assert answer.instant
    release(world, held)
    assert world.read(bucket, "back").sha256 == facts.sha256
    world.check()


def test_last_hold_released_lets_the_content_go(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k", b"old")
    first, second = hold(world, bucket), hold(world, bucket)
    world.put_stored(bucket, "k", b"new")
    release(world, first)
    assert world.open_tasks("delete.blob") == []
    release(world, second)
    assert len(world.open_tasks("delete.blob")) == 1
    world.check()


def test_releasing_twice_at_once_drops_one_reference(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    held = hold(world, bucket)
    assert together(*(lambda: release(world, held) for _ in range(4))) == ["released"] * 4
    assert [ref.holder_kind for ref in world.all(BlobRef)] == ["version"]
    world.check()


def test_time_ends_a_hold(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    soon = world.run(lambda session: session.execute(sa.select(utc_now(3600))).scalar_one())
    held = hold(world, bucket, until=soon)
    assert world.run(lambda session: expire_hold(session, world.catalogue, held)) is False
    with world.engine.begin() as connection:
        connection.execute(sa.update(Hold).values(until=utc_now(-1)))
    # Its time is over: it refuses nothing any more, even before the sweep has been there.
    assert world.delete(bucket, "k").existed
    assert world.all(Blob)[0].state == "live"
    assert world.run(lambda session: overdue_holds(session, limit=10)) == [held]
    assert world.run(lambda session: expire_hold(session, world.catalogue, held)) is True
    assert world.all(Blob)[0].state == "condemned"
    assert world.get(Hold, held).state == HoldState.EXPIRED
    assert breaches(world) == []
    world.check()


def test_hold_on_what_is_not_stored_is_for_later(world: World, bucket: int) -> None:
    world.put(bucket, "k")
    with pytest.raises(NotStoredYet):
        hold(world, bucket)
    with pytest.raises(NotFoundError):
        hold(world, bucket, "never")
    assert world.all(Hold) == []


def test_hold_in_the_past_is_refused(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    with pytest.raises(InvalidError):
        hold(world, bucket, until=dt.datetime(2020, 1, 1))


def test_hold_and_delete_that_meet_are_one_before_the_other(world: World, bucket: int) -> None:
    for turn in range(8):
        key = f"k{turn}"
        world.put_stored(bucket, key, key.encode())
        deleted, held = together(
            lambda key=key: world.delete(bucket, key), lambda key=key: hold(world, bucket, key)
        )
        if isinstance(held, int):
            assert isinstance(deleted, ConflictError)
        else:
            assert isinstance(held, NotFoundError)
            assert deleted.existed
    assert breaches(world) == []
    world.check()


def test_breach_is_seen(world: World, bucket: int) -> None:
    world.put_stored(bucket, "k")
    hold(world, bucket)

    def lose(session: Session) -> None:
        session.execute(sa.delete(BlobRef).where(BlobRef.holder_kind == "hold"))

    world.run(lose)
    assert len(breaches(world)) == 1
