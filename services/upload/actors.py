"""The Dramatiq actor of the queue, and its handlers bound to what they work with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.upload.assembling import assemble
from services.upload.handlers import Deps, store
from shared.catalog.kinds import RegisteredCatalogue
from shared.catalog.payloads import AssembleUpload, StoreUpload
from shared.outbox import Execution, Fail, Retry, Snooze

if TYPE_CHECKING:
    import dramatiq

    from shared.outbox.outbox import Outbox

QUEUE = "upload"


def register(
    outbox: Outbox, catalogue: RegisteredCatalogue, deps: Deps
) -> dramatiq.Actor[..., None]:
    """Attach the handlers of this service and return the actor that runs them."""

    @outbox.handler(catalogue.kinds.upload_store)
    def run(execution: Execution, payload: StoreUpload) -> Retry | Snooze | Fail | None:
        return store(execution, payload, deps)

    @outbox.handler(catalogue.kinds.upload_assemble)
    def join(execution: Execution, payload: AssembleUpload) -> Fail | None:
        return assemble(execution, payload, deps)

    return outbox.actor(QUEUE)
