"""An origin worker beside the application, with threads and scans of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from services.origin import actors
from services.origin.deps import Deps
from services.origin.hosts import Hosts
from shared.catalog.channel_slots import ChannelLimits
from shared.catalog.kinds import register_kinds
from shared.catalog.origins.slots import OriginLimits
from shared.coordination.slots import RedisSlots
from shared.outbox.outbox import Outbox
from tests.integration.api.stack import Stack


@contextlib.contextmanager
def pulling_worker(
    stack: Stack, redis_url: str, namespace: str, *, max_running: int = 0
) -> Iterator[Outbox]:
    """Fetch what is asked for, until the block ends."""
    outbox = Outbox(
        stack.engine,
        redis_url,
        namespace=namespace,
        places=RedisSlots(redis_url, namespace),
        limits=OriginLimits(ChannelLimits(stack.deps.channels), max_running=max_running),
    )
    catalogue = register_kinds(outbox, grace_seconds=0)
    deps = Deps(
        db=outbox.context.db,
        catalogue=catalogue,
        staging=stack.deps.staging,
        secrets=stack.deps.secrets,
        fetcher=stack.deps.fetch,
        hosts=Hosts(per_host=2),
        resources=outbox.resources,
        max_running=max_running,
    )
    actors.register(outbox, catalogue, deps)
    stop = threading.Event()
    scans = threading.Thread(target=outbox.compensator().run, args=(stop,))
    outbox.start_worker([actors.QUEUE], threads=4)
    scans.start()
    try:
        yield outbox
    finally:
        stop.set()
        scans.join(20)
        outbox.close(10)
