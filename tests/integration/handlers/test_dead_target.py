"""A replica target that is dead holds up neither other targets nor requests: real threads."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import sqlalchemy as sa

from services.replica import actors
from services.replica.handlers import Deps
from services.replica.shares import Shares
from shared.catalog.channel_catalogue import ChannelCatalogue
from shared.catalog.channels import ChannelInput, put_channel
from shared.catalog.kinds import register_kinds
from shared.catalog.models import Replica
from shared.core.clock import monotonic
from shared.outbox.outbox import Outbox
from shared.storage.registry import OpenChannel
from tests.support.effects import settings_for
from tests.support.eventually import eventually
from tests.support.handlers import Stand
from tests.support.replicas import Copies

pytestmark = pytest.mark.databases("mariadb")

THREADS = 4
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


@contextmanager
def working(stand: Stand, channels: WithDead, url: str, redis_url: str, ns: str) -> Iterator[None]:
    """Run the replica service's handlers on threads."""
    engine = sa.create_engine(url, pool_size=20)
    outbox = Outbox(engine, redis_url, namespace=ns, settings=settings_for(4.0))
    catalogue = register_kinds(outbox, grace_seconds=0.0)
    deps = Deps(
        db=outbox.context.db, catalogue=catalogue, channels=channels, shares=Shares(THREADS)
    )
    actors.register(outbox, catalogue, deps)
    stand.catalogue = catalogue
    stand.upload = dataclasses.replace(stand.upload, catalogue=catalogue)
    stopping = threading.Event()
    compensator = outbox.compensator()
    scans = threading.Thread(target=compensator.run, args=(stopping,), daemon=True)
    outbox.start_worker(threads=THREADS)
    scans.start()
    try:
        yield
    finally:
        stopping.set()
        scans.join(10)
        outbox.stop_consuming()
        outbox.drain(5)
        outbox.close(5)
        engine.dispose()


def test_other_targets_and_requests_go_on(
    stand: Stand, blox_url: str, redis_url: str, namespace: str, black_hole: str
) -> None:
    channels = WithDead(stand, black_hole)
    copies = Copies(stand, replicas=())
    to_dead = stand.bucket("one", channels=["a"], replicas=["dead"])
    to_b = stand.bucket("two", channels=["a"], replicas=["b"])
    dead_puts = [stand.put(to_dead, f"k{n}", f"dead {n}".encode()) for n in range(12)]
    puts = [stand.put(to_b, f"k{n}", f"alive {n}".encode()) for n in range(6)]

    def is_copied(blob_id: int) -> bool:
        return copies.replica(blob_id).state == "completed"

    for put in dead_puts:
        assert stand.work(put.task_id) == "completed"
    with working(stand, channels, blox_url, redis_url, namespace):
        # The dead target has the threads that it gets.
        eventually(lambda: running(stand) >= THREADS - 1, 20)
        began = monotonic()
        for put in puts:
            assert stand.work(put.task_id) == "completed"
        assert monotonic() - began < PATIENCE_SECONDS
        for put in puts:
            blob_id = stand.version(put.version_id).blob_id
            eventually(lambda blob_id=blob_id: is_copied(blob_id), PATIENCE_SECONDS)  # type: ignore[misc]
        states = stand.look(
            lambda session: set(
                session.scalars(sa.select(Replica.state).where(Replica.channel == "dead"))
            )
        )
        assert states == {"pending"}


def running(stand: Stand) -> int:
    """Count the tasks that run."""
    return stand.look(
        lambda session: (
            session.scalar(
                sa.text("SELECT COUNT(*) FROM tasks WHERE queue = 'replica' AND state = 'running'")
            )
            or 0
        )
    )
