"""The Dramatiq actor of the queue, and its handlers bound to what they work with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.replica.handlers import Deps, copy
from services.replica.objects import copy_object
from shared.catalog.kinds import RegisteredCatalogue
from shared.catalog.payloads import CopyObject, CopyReplica
from shared.outbox import Execution, Fail, Snooze

if TYPE_CHECKING:
    import dramatiq

    from shared.outbox.outbox import Outbox

QUEUE = "replica"


def register(
    outbox: Outbox, catalogue: RegisteredCatalogue, deps: Deps
) -> dramatiq.Actor[..., None]:
    """Attach the handlers of this service and return the actor that runs them."""

    def run(execution: Execution, payload: CopyReplica) -> Snooze | None:
        return copy(execution, payload, deps)

    def run_object(execution: Execution, payload: CopyObject) -> Snooze | Fail | None:
        return copy_object(execution, payload, deps)

    outbox.handler(catalogue.kinds.replica_copy)(run)
    outbox.handler(catalogue.kinds.replica_repair)(run)
    outbox.handler(catalogue.kinds.replica_object)(run_object)
    return outbox.actor(QUEUE)
