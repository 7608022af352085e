"""The Dramatiq actor of the queue, and its handlers bound to what they work with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.restore.handlers import Deps, restore_blob
from services.restore.runs import run_restore
from shared.catalog.kinds import RegisteredCatalogue
from shared.catalog.payloads import RestoreBlob, RunRestore
from shared.outbox import Execution, Fail, Retry, Snooze

if TYPE_CHECKING:
    import dramatiq

    from shared.outbox.outbox import Outbox

QUEUE = "restore"


def register(
    outbox: Outbox, catalogue: RegisteredCatalogue, deps: Deps
) -> dramatiq.Actor[..., None]:
    """Attach the handlers of this service and return the actor that runs them."""

    @outbox.handler(catalogue.kinds.restore_blob)
    def restore(execution: Execution, payload: RestoreBlob) -> Snooze | Retry | Fail | None:
        return restore_blob(execution, payload, deps)

    @outbox.handler(catalogue.kinds.restore_run)
    def run(execution: Execution, payload: RunRestore) -> Fail | Snooze | None:
        return run_restore(execution, payload, deps)

    return outbox.actor(QUEUE)
