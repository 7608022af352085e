"""A service's handlers on the threads of one process, as its composition root would run them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from shared.catalog.channel_slots import ChannelSlots
from shared.catalog.kinds import RegisteredCatalogue, register_kinds
from shared.coordination.slots import RedisSlots
from shared.core.shares import Shares
from shared.outbox.outbox import Outbox
from shared.outbox.ports import Limits
from tests.support.effects import settings_for
from tests.support.handlers import Stand

#: Soon, for a test: production waits for some seconds.
SILENT_SECONDS = 1.0

#: Attaches a service's handlers to an outbox.
Attach = Callable[[Outbox, RegisteredCatalogue, Shares, ChannelSlots], object]


@contextmanager
def on_threads(
    stand: Stand,
    url: str,
    redis_url: str,
    namespace: str,
    attach: Attach,
    *,
    threads: int,
    limits: Limits | None = None,
) -> Iterator[None]:
    """Run a service with its scans until the block ends; the stand's tasks go to it as well."""
    engine = sa.create_engine(url, pool_size=20)
    outbox = Outbox(
        engine,
        redis_url,
        namespace=namespace,
        settings=settings_for(4.0),
        places=RedisSlots(redis_url, namespace, slot_seconds=8.0),
        limits=limits,
    )
    catalogue = register_kinds(outbox, grace_seconds=0.0)
    shares = Shares(threads, silent_seconds=SILENT_SECONDS)
    attach(outbox, catalogue, shares, ChannelSlots(outbox.resources, shares))
    stand.catalogue = catalogue
    stand.upload = dataclasses.replace(stand.upload, catalogue=catalogue)
    stopping = threading.Event()
    compensator = outbox.compensator()
    scans = threading.Thread(target=compensator.run, args=(stopping,), daemon=True)
    outbox.start_worker(threads=threads)
    scans.start()
    try:
        yield
    finally:
        stopping.set()
        scans.join(10)
        outbox.stop_consuming()
        outbox.drain(2)
        outbox.close(5)
        engine.dispose()
