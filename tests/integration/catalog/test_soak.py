"""Few contents, few keys, many actors, no grace: what lost data elsewhere, all at once."""

from __future__ import annotations

import random
import time

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.locking import lock_blobs
from shared.catalog.models import Blob, BlobState, Location, LocationState, Version, VersionState
from shared.catalog.removal import Go, finish, take
from shared.core.errors import NotFoundError
from shared.outbox.schema import tasks
from tests.support.catalogue import World, together

ACTORS = 8
SECONDS = 4.0


def _deadlocks(world: World) -> int:
    if world.engine.dialect.name == "sqlite":
        return 0
    with world.engine.connect() as connection:
        return int(
            connection.execute(sa.text("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")).one()[1]
        )


def _store_any(world: World, rng: random.Random) -> None:
    def find(session: Session) -> list[int]:
        return list(
            session.scalars(sa.select(Version.id).where(Version.state == VersionState.PENDING))
        )

    pending = world.run(find)
    if pending:
        try:
            world.store(rng.choice(pending))
        except NotFoundError:
            return


def _delete_any(world: World, rng: random.Random) -> None:
    with world.engine.connect() as connection:
        found = connection.execute(
            sa.select(tasks.c.id, tasks.c.payload).where(
                tasks.c.kind == "delete.blob", tasks.c.state == "pending"
            )
        ).all()
    if not found:
        return
    task = rng.choice(found)
    blob_id, generation = task.payload["p"]["blob_id"], task.payload["p"]["generation"]

    def own(session: Session) -> object:
        return take(session, blob_id=blob_id, generation=generation, task_id=task.id)

    def end(session: Session) -> None:
        blob = lock_blobs(session, [blob_id])[blob_id]
        session.execute(
            sa.update(Location)
            .where(Location.blob_id == blob_id)
            .values(state=LocationState.TOMBSTONE)
        )
        finish(session, blob, task_id=task.id)

    if isinstance(world.run(own), Go):
        world.run(end)
    world.set_task(task.id, state="completed")


@pytest.mark.timeout(180)
def test_no_reference_ever_loses_its_bytes(world: World, bucket: int) -> None:
    before = _deadlocks(world)
    until = time.monotonic() + SECONDS
    done = [0] * ACTORS

    def actor(number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < until:
            key, content = f"k{rng.randrange(4)}", f"content {rng.randrange(3)}".encode()
            action = rng.random()
            if action < 0.4:
                world.put(bucket, key, content)
            elif action < 0.6:
                world.delete(bucket, key)
            elif action < 0.85:
                _store_any(world, rng)
            else:
                _delete_any(world, rng)
            done[number] += 1

    answers = together(*(lambda n=n: actor(n) for n in range(ACTORS)))
    assert answers == [None] * ACTORS
    assert sum(done) > ACTORS
    world.check()
    copies = {
        location.blob_id
        for location in world.all(Location)
        if location.state == LocationState.STORED
    }
    for blob in world.all(Blob):
        if blob.state == BlobState.LIVE:
            assert blob.id in copies
        if blob.state == BlobState.DELETED:
            assert blob.id not in copies
    # They would be tried again; one lock order means that there are none to speak of.
    assert _deadlocks(world) - before <= sum(done) // 100
