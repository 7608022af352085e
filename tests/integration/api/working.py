"""An upload worker beside the application, with threads and scans of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from services.upload import assembling
from services.upload import handlers as uploading
from shared.catalog.kinds import register_kinds
from shared.catalog.payloads import AssembleUpload, StoreUpload
from shared.outbox import Execution
from shared.outbox.outbox import Outbox
from tests.integration.api.stack import Stack


@contextlib.contextmanager
def uploading_worker(stack: Stack, redis_url: str, namespace: str) -> Iterator[Outbox]:
    """Store what is put, until the block ends."""
    outbox = Outbox(stack.engine, redis_url, namespace=namespace)
    catalogue = register_kinds(outbox, grace_seconds=0)
    deps = uploading.Deps(
        db=outbox.context.db,
        catalogue=catalogue,
        channels=stack.deps.channels,
        staging=stack.deps.staging,
    )

    @outbox.handler(catalogue.kinds.upload_store)
    def store(execution: Execution, payload: StoreUpload) -> object:
        return uploading.store(execution, payload, deps)

    @outbox.handler(catalogue.kinds.upload_assemble)
    def join(execution: Execution, payload: AssembleUpload) -> object:
        return assembling.assemble(execution, payload, deps)

    stop = threading.Event()
    scans = threading.Thread(target=outbox.compensator().run, args=(stop,))
    outbox.start_worker(["upload"], threads=2)
    scans.start()
    try:
        yield outbox
    finally:
        stop.set()
        scans.join(20)
        outbox.close(10)
