"""The Dramatiq actor of the queue, and its handlers bound to what they work with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.delete.handlers import Deps, delete
from services.delete.prefix import PrefixDeps, delete_prefix
from shared.catalog.kinds import RegisteredCatalogue
from shared.catalog.payloads import DeleteBlob, DeletePrefix
from shared.outbox import Execution, Snooze

if TYPE_CHECKING:
    import dramatiq

    from shared.outbox.outbox import Outbox

QUEUE = "delete"


def register(
    outbox: Outbox, catalogue: RegisteredCatalogue, deps: Deps, prefix_deps: PrefixDeps
) -> dramatiq.Actor[..., None]:
    """Attach the handlers of this service and return the actor that runs them."""

    @outbox.handler(catalogue.kinds.delete_blob)
    def run(execution: Execution, payload: DeleteBlob) -> Snooze | None:
        return delete(execution, payload, deps)

    @outbox.handler(catalogue.kinds.delete_prefix)
    def run_prefix(execution: Execution, payload: DeletePrefix) -> None:
        delete_prefix(execution, payload, prefix_deps)

    return outbox.actor(QUEUE)
