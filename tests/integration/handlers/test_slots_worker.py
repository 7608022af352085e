"""Uploads by two workers on a real outbox: a limit counted by the channel, and a breakdown."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from services.upload import actors
from services.upload.handlers import Deps
from shared.catalog.channel_slots import ChannelLimits, ChannelSlots
from shared.catalog.kinds import register_kinds
from shared.catalog.models import Version
from shared.coordination.slots import RedisSlots
from shared.core.errors import UnavailableError
from shared.outbox.outbox import Outbox
from shared.outbox.schema import tasks
from shared.storage.errors import ChannelUnavailable
from shared.storage.faulty import FaultyChannel
from shared.storage.file import FileChannel
from shared.storage.registry import OpenChannel
from shared.storage.spec import Tuning
from tests.support.effects import settings_for
from tests.support.eventually import eventually
from tests.support.handlers import Stand


class Counting(FaultyChannel):
    """Counts how many puts are inside of it at a time, each for some milliseconds."""

    def __init__(self, inner: FileChannel) -> None:
        super().__init__(inner)
        self._count = threading.Lock()
        self.inside = 0
        self.most = 0

    def put(self, *args: Any, **options: Any) -> Any:
        """See Channel.put."""
        with self._count:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            threading.Event().wait(0.005)
            return super().put(*args, **options)
        finally:
            with self._count:
                self.inside -= 1


@pytest.fixture
def channel(stand: Stand, tmp_path: Path) -> Counting:
    """The stand's channel "a" as one that counts, with a breaker of a second."""
    counting = Counting(FileChannel(tmp_path / "counting", name="a", create=True))
    tuning = Tuning(breaker_failures=3, breaker_open_seconds=1.0)
    stand.channels._open["a"] = OpenChannel.around(counting, tuning)
    stand.channels.faulty["a"] = counting
    return counting


@contextmanager
def working(stand: Stand, url: str, redis_url: str, namespace: str) -> Iterator[None]:
    """Run the upload service, as one process would, with scans."""
    engine = sa.create_engine(url, pool_size=20)
    outbox = Outbox(
        engine,
        redis_url,
        namespace=namespace,
        settings=settings_for(4.0),
        places=RedisSlots(redis_url, namespace, slot_seconds=8.0),
        limits=ChannelLimits(stand.channels),
    )
    catalogue = register_kinds(outbox, grace_seconds=0.0)
    deps = Deps(
        db=outbox.context.db,
        catalogue=catalogue,
        channels=stand.channels,
        staging=stand.staging,
        slots=ChannelSlots(outbox.resources),
    )
    actors.register(outbox, catalogue, deps)
    stand.catalogue = catalogue
    stopping = threading.Event()
    compensator = outbox.compensator()
    scans = threading.Thread(target=compensator.run, args=(stopping,), daemon=True)
    outbox.start_worker(threads=4)
    scans.start()
    try:
        yield
    finally:
        stopping.set()
        scans.join(10)
        outbox.drain(5)
        outbox.close(5)
        engine.dispose()


def _all_stored(stand: Stand, count: int) -> bool:
    states = stand.look(lambda session: list(session.scalars(sa.select(Version.state))))
    return states == ["stored"] * count


def _attempts(stand: Stand) -> list[int]:
    return stand.look(lambda session: list(session.scalars(sa.select(tasks.c.attempt))))


def test_channel_is_never_used_by_more_than_its_limit(
    stand: Stand, channel: Counting, blox_url: str, redis_url: str, namespace: str
) -> None:
    stand.channels.limit("a", 2)
    bucket = stand.bucket(channels=["a"])
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(working(stand, blox_url, redis_url, namespace))
        puts = [stand.put(bucket, f"{n}", f"content {n}".encode()) for n in range(40)]
        eventually(lambda: _all_stored(stand, 40), 60)
    assert channel.most == 2
    assert _attempts(stand) == [1] * 40
    assert stand.stored_bytes(puts[39].version_id) == b"content 39"


def test_broken_channel_parks_all_and_has_them_back_when_it_is_well(
    stand: Stand, channel: Counting, blox_url: str, redis_url: str, namespace: str
) -> None:
    bucket = stand.bucket(channels=["a"])
    channel.fail_always(ChannelUnavailable("down"))
    with working(stand, blox_url, redis_url, namespace):
        for n in range(30):
            stand.put(bucket, f"{n}", f"content {n}".encode())
        eventually(lambda: len(_parked(stand)) >= 20, 60)
        channel.heal()
        eventually(lambda: _all_stored(stand, 30), 60)
    # Those who met the failing channel itself have counted it, all others nothing.
    assert sum(_attempts(stand)) <= 30 + 20


def _parked(stand: Stand) -> list[int]:
    where = tasks.c.resource_key == "channel:a"
    return stand.look(lambda session: list(session.scalars(sa.select(tasks.c.id).where(where))))


def test_limit_that_cannot_be_known_lets_nobody_in(stand: Stand) -> None:
    class Unknown:
        def find(self, name: str) -> Any:
            raise UnavailableError("the table of channels cannot be read")

    limits = ChannelLimits(Unknown())  # type: ignore[arg-type]
    with pytest.raises(UnavailableError):
        limits.limit("channel:a")
    assert limits.limit("printer") == 0
    found = stand.channels.find("a")
    assert found is not None
    stand.channels.limit("a", 7)
    assert ChannelLimits(stand.channels).limit("channel:a") == 7
    assert ChannelLimits(stand.channels).limit("channel:gone") == 0
    assert replace(found[0], max_running=7) == stand.channels.find("a")[0]  # type: ignore[index]
