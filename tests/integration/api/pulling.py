"""An origin worker beside the application, with threads and scans of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from services.origin import actors
from services.origin.deps import Deps
from services.origin.hosts import Hosts
from shared.catalog.kinds import register_kinds
from shared.outbox.outbox import Outbox
from tests.integration.api.stack import Stack


@contextlib.contextmanager
def pulling_worker(stack: Stack, redis_url: str, namespace: str) -> Iterator[Outbox]:
    """Fetch what is asked for, until the block ends."""
    outbox = Outbox(stack.engine, redis_url, namespace=namespace)
    catalogue = register_kinds(outbox, grace_seconds=0)
    deps = Deps(
        db=outbox.context.db,
        catalogue=catalogue,
        staging=stack.deps.staging,
        secrets=stack.deps.secrets,
        fetcher=stack.deps.fetch,
        hosts=Hosts(per_host=4),
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
