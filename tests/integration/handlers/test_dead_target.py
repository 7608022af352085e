"""A server that accepts and never answers holds up nobody else: each service on real threads.

There is always more work for the silent one than there are threads, and it comes first.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from functools import partial

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from services.replica import actors as replica_actors
from services.replica.handlers import Deps as ReplicaDeps
from shared.catalog.channel_catalogue import ChannelCatalogue
from shared.catalog.channel_slots import ChannelSlots
from shared.catalog.channels import ChannelInput, put_channel
from shared.catalog.kinds import RegisteredCatalogue
from shared.catalog.models import Location
from shared.core.shares import Shares
from shared.outbox.outbox import Outbox
from shared.outbox.schema import tasks
from shared.storage.registry import OpenChannel
from tests.support.eventually import eventually
from tests.support.handlers import Stand
from tests.support.replicas import Copies
from tests.support.threads import Attach, on_threads

pytestmark = pytest.mark.databases("mariadb")

THREADS = 4
#: More than there are threads.
MANY = 12
#: Far below the 30 seconds that a call to a server takes to fail that says nothing.
PATIENCE_SECONDS = 15.0


@pytest.fixture
def black_hole() -> Iterator[str]:
    """A server that accepts and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


class WithDead:
    """The stand's channels, and a bucket of a server that never answers."""

    def __init__(self, stand: Stand, endpoint: str) -> None:
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
def channels(stand: Stand, black_hole: str) -> WithDead:
    return WithDead(stand, black_hole)


def store(stand: Stand, bucket_id: int, count: int) -> list[int]:
    """Store objects; returns the ids of their blobs."""
    puts = [stand.put(bucket_id, f"k{n}", f"{bucket_id} {n}".encode()) for n in range(count)]
    for put in puts:
        assert stand.work(put.task_id) == "completed"
    return [stand.version(put.version_id).blob_id or 0 for put in puts]


def stand_on_dead(stand: Stand, blob_ids: Sequence[int]) -> None:
    """Let contents stand on the dead channel, as if it had died after they were stored."""

    def write(session: Session) -> None:
        session.execute(
            sa.update(Location).where(Location.blob_id.in_(blob_ids)).values(channel="dead")
        )

    stand.db.run_session(write)


def running(stand: Stand) -> int:
    """Count the tasks that run."""
    statement = sa.select(sa.func.count()).where(tasks.c.state == "running")
    return stand.look(lambda session: session.scalar(statement) or 0)


def attempts(stand: Stand, queue: str) -> int:
    """Count the attempts of a queue's tasks that have not ended well."""
    statement = sa.select(sa.func.sum(tasks.c.attempt)).where(
        tasks.c.queue == queue, tasks.c.state != "completed"
    )
    return stand.look(lambda session: int(session.scalar(statement) or 0))


def replica(channels: WithDead) -> Attach:
    """Return what attaches the replica service."""

    def attach(
        outbox: Outbox, catalogue: RegisteredCatalogue, _: Shares, slots: ChannelSlots
    ) -> None:
        deps = ReplicaDeps(
            db=outbox.context.db, catalogue=catalogue, channels=channels, slots=slots
        )
        replica_actors.register(outbox, catalogue, deps)

    return attach


def test_copies_to_another_target_and_requests_go_on(
    stand: Stand, channels: WithDead, blox_url: str, redis_url: str, namespace: str
) -> None:
    copies = Copies(stand, replicas=())
    store(stand, stand.bucket("one", channels=["a"], replicas=["dead"]), MANY)
    to_b = stand.bucket("two", channels=["a"], replicas=["b"])
    with on_threads(stand, blox_url, redis_url, namespace, replica(channels), threads=THREADS):
        eventually(lambda: running(stand) == THREADS, 20, message="all threads ask the dead one")
        for blob_id in store(stand, to_b, 6):
            eventually(
                lambda blob_id=blob_id: copies.replica(blob_id).state == "completed",
                PATIENCE_SECONDS,
            )
        assert attempts(stand, "replica") == 0


def test_copies_from_another_source_to_the_same_target_go_on(
    stand: Stand, channels: WithDead, blox_url: str, redis_url: str, namespace: str
) -> None:
    copies = Copies(stand, replicas=())
    stand_on_dead(stand, store(stand, stand.bucket("one", channels=["a"], replicas=["b"]), MANY))
    from_a = stand.bucket("two", channels=["a"], replicas=["b"])
    with on_threads(stand, blox_url, redis_url, namespace, replica(channels), threads=THREADS):
        eventually(lambda: running(stand) == THREADS, 20, message="all threads ask the dead one")
        for blob_id in store(stand, from_a, 6):
            eventually(
                lambda blob_id=blob_id: copies.replica(blob_id).state == "completed",
                PATIENCE_SECONDS,
            )
        assert attempts(stand, "replica") == 0
