"""A server that accepts and never answers holds up nobody else: each service on real threads.

There is always more work for the silent one than there are threads, and it comes first.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from services.backup import actors as backup_actors
from services.delete import actors as delete_actors
from services.delete.handlers import Deps as DeleteDeps
from services.replica import actors as replica_actors
from services.replica.handlers import Deps as ReplicaDeps
from services.restore import actors as restore_actors
from services.upload import actors as upload_actors
from shared.catalog.channel_catalogue import ChannelCatalogue
from shared.catalog.channel_slots import ChannelSlots
from shared.catalog.channels import ChannelInput, put_channel
from shared.catalog.kinds import RegisteredCatalogue
from shared.catalog.models import Bucket, Location, LocationState
from shared.catalog.replicas.losses import report_loss
from shared.catalog.restores.losses import FoundBy
from shared.core.shares import Shares
from shared.outbox.outbox import Outbox
from shared.outbox.schema import tasks
from shared.storage.registry import OpenChannel
from tests.support.backups import BackupStand
from tests.support.eventually import eventually
from tests.support.replicas import Copies
from tests.support.threads import Attach, on_threads

pytestmark = pytest.mark.databases("mariadb")

#: Runs a service by its name.
Serving = Callable[[str], AbstractContextManager[None]]

THREADS = 4
#: More than there are threads.
MANY = 12
#: Far below the 30 seconds that a call to a server takes to fail that says nothing.
PATIENCE_SECONDS = 20.0


@pytest.fixture
def stand(blox_url: str, tmp_path: Path) -> Iterator[BackupStand]:
    made = BackupStand(blox_url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def black_hole() -> Iterator[str]:
    """A server that accepts and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


class WithDead:
    """The stand's channels, and a bucket of a server that never answers."""

    def __init__(self, stand: BackupStand, endpoint: str) -> None:
        self._stand = stand
        dead = ChannelInput(
            name="dead",
            kind="s3",
            settings={"endpoint": endpoint, "bucket": "b", "region": "us-east-1"},
            credentials={"access_key": "a", "secret_key": "s"},
        )
        stand.db.run_session(partial(put_channel, channel=dead, secrets=stand.secrets))
        self._table = ChannelCatalogue(stand.db.engine, stand.secrets)

    def find(self, name: str) -> tuple[OpenChannel, bool] | None:
        """Return a channel."""
        return self._table.find(name) if name == "dead" else self._stand.channels.find(name)


@pytest.fixture
def channels(stand: BackupStand, black_hole: str) -> WithDead:
    return WithDead(stand, black_hole)


def store(stand: BackupStand, bucket_id: int, count: int) -> list[int]:
    """Store objects; returns the ids of their blobs."""
    puts = [stand.put(bucket_id, f"k{n}", f"{bucket_id} {n}".encode()) for n in range(count)]
    for put in puts:
        assert stand.work(put.task_id) == "completed"
    return [stand.version(put.version_id).blob_id or 0 for put in puts]


def stand_on_dead(stand: BackupStand, blob_ids: Sequence[int]) -> None:
    """Let contents stand on the dead channel, as if it had died after they were stored."""

    def write(session: Session) -> None:
        session.execute(
            sa.update(Location).where(Location.blob_id.in_(blob_ids)).values(channel="dead")
        )

    stand.db.run_session(write)


def running(stand: BackupStand) -> int:
    """Count the tasks that run."""
    statement = sa.select(sa.func.count()).where(tasks.c.state == "running")
    return stand.look(lambda session: session.scalar(statement) or 0)


def attempts(stand: BackupStand, queue: str) -> int:
    """Count the attempts of a queue's tasks that have not ended well."""
    statement = sa.select(sa.func.sum(tasks.c.attempt)).where(
        tasks.c.queue == queue, tasks.c.state != "completed"
    )
    return stand.look(lambda session: int(session.scalar(statement) or 0))


def attach_service(stand: BackupStand, channels: WithDead, name: str) -> Attach:
    """Return what attaches a service to an outbox, on these channels."""

    def attach(
        outbox: Outbox, catalogue: RegisteredCatalogue, _: Shares, slots: ChannelSlots
    ) -> None:
        db = outbox.context.db
        if name == "replica":
            deps = ReplicaDeps(db=db, catalogue=catalogue, channels=channels, slots=slots)
            replica_actors.register(outbox, catalogue, deps)
            return
        if name == "delete":
            delete_actors.register(
                outbox,
                catalogue,
                DeleteDeps(db=db, channels=channels, slots=slots),
                replace(stand.prefix, db=db, catalogue=catalogue),
            )
            return
        own = {"upload": stand.upload, "backup": stand.backup, "restore": stand.restore}[name]
        actors = {"upload": upload_actors, "backup": backup_actors, "restore": restore_actors}
        made = replace(own, db=db, catalogue=catalogue, channels=channels, slots=slots)
        actors[name].register(outbox, catalogue, made)

    return attach


@pytest.fixture
def serving(
    stand: BackupStand, channels: WithDead, blox_url: str, redis_url: str, namespace: str
) -> Serving:
    """Return what runs a service until its block ends."""

    def serve(name: str) -> AbstractContextManager[None]:
        attach = attach_service(stand, channels, name)
        return on_threads(stand, blox_url, redis_url, namespace, attach, threads=THREADS)

    return serve


def all_in_vain(stand: BackupStand) -> None:
    """Wait until the server that never answers has all the threads that it gets."""
    eventually(lambda: running(stand) >= THREADS - 1, 20)


def soon(condition: Callable[[], object]) -> None:
    """Wait for what must not wait for the silent server."""
    eventually(condition, PATIENCE_SECONDS)


def test_copies_to_another_target_and_requests_go_on(stand: BackupStand, serving: Serving) -> None:
    copies = Copies(stand, replicas=())
    store(stand, stand.bucket("one", channels=["a"], replicas=["dead"]), MANY)
    to_b = stand.bucket("two", channels=["a"], replicas=["b"])
    with serving("replica"):
        all_in_vain(stand)
        blob_ids = store(stand, to_b, 6)
        soon(lambda: {copies.replica(one).state for one in blob_ids} == {"completed"})
        assert attempts(stand, "replica") == 0


def test_copies_from_another_source_to_the_same_target_go_on(
    stand: BackupStand, serving: Serving
) -> None:
    copies = Copies(stand, replicas=())
    stand_on_dead(stand, store(stand, stand.bucket("one", channels=["a"], replicas=["b"]), MANY))
    from_a = stand.bucket("two", channels=["a"], replicas=["b"])
    with serving("replica"):
        all_in_vain(stand)
        blob_ids = store(stand, from_a, 6)
        soon(lambda: {copies.replica(one).state for one in blob_ids} == {"completed"})
        assert attempts(stand, "replica") == 0


def test_uploads_to_another_channel_go_on(stand: BackupStand, serving: Serving) -> None:
    to_dead = stand.bucket("one", channels=["dead"])
    to_a = stand.bucket("two", channels=["a"])
    for n in range(MANY):
        stand.put(to_dead, f"k{n}", f"in vain {n}".encode())
    with serving("upload"):
        all_in_vain(stand)
        puts = [stand.put(to_a, f"k{n}", f"stored {n}".encode()) for n in range(6)]
        soon(lambda: {stand.version(one.version_id).state for one in puts} == {"stored"})
        assert attempts(stand, "upload") == 0


def test_backups_to_another_target_go_on(stand: BackupStand, serving: Serving) -> None:
    to_dead, to_c = stand.backed_up("one"), stand.backed_up("two")

    def write(session: Session) -> None:
        bucket = session.get_one(Bucket, to_dead)
        bucket.backup = {**(bucket.backup or {}), "target": "dead"}

    stand.db.run_session(write)
    store(stand, to_dead, MANY)
    store(stand, to_c, 6)
    in_vain = stand.begin(to_dead)
    with serving("backup"):
        all_in_vain(stand)
        begun = stand.begin(to_c)
        soon(lambda: stand.run_row(begun.id).state == "complete")
        assert stand.run_row(in_vain.id).state == "open"
        assert attempts(stand, "backup") == 0


def test_restores_to_another_channel_go_on(stand: BackupStand, serving: Serving) -> None:
    one, two = stand.backed_up("one"), stand.backed_up("two")
    blob_ids = store(stand, one, MANY)
    versions = [stand.stored(two, f"k{n}", f"lost {n}".encode()) for n in range(6)]
    stand.back_up(two)
    stand_on_dead(stand, blob_ids)
    for location in stand.locations():
        if location.channel == "dead":
            stand.db.run_session(
                partial(
                    report_loss,
                    catalogue=stand.catalogue,
                    location_id=location.id,
                    found_by=FoundBy.OPERATOR,
                    detail="said to be lost",
                )
            )
    with serving("restore"):
        all_in_vain(stand)
        for version_id in versions:
            stand.lose(version_id)
            stand.report(version_id)
        soon(lambda: sum(one.state == "restored" for one in stand.losses()) == len(versions))
        assert attempts(stand, "restore") == 0


def test_deletions_on_another_channel_go_on(stand: BackupStand, serving: Serving) -> None:
    one, two = stand.bucket("one", channels=["a"]), stand.bucket("two", channels=["a"])
    stand_on_dead(stand, store(stand, one, MANY))
    blob_ids = store(stand, two, 6)
    for n in range(MANY):
        stand.remove(one, f"k{n}")
    with serving("delete"):
        all_in_vain(stand)
        for n in range(6):
            stand.remove(two, f"k{n}")
        soon(lambda: {stand.blob(one).state for one in blob_ids} == {"deleted"})
        states = {one.state for one in stand.locations() if one.channel == "dead"}
        assert states == {LocationState.STORED}, "none of them counts as failed"
        assert attempts(stand, "delete") == 0
