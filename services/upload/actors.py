"""The Dramatiq actor of the queue, and its handlers bound to what they work with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.upload.handlers import Deps, store
from shared.catalog.kinds import RegisteredCatalogue
from shared.catalog.payloads import StoreUpload
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

    return outbox.actor(QUEUE)
