"""The Dramatiq actor of the queue, and its handler bound to what it works with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.notify.handlers import Deps, send
from shared.catalog.kinds import RegisteredCatalogue
from shared.catalog.payloads import SendNotification
from shared.outbox import Execution, Fail, Retry, Snooze

if TYPE_CHECKING:
    import dramatiq

    from shared.outbox.outbox import Outbox

QUEUE = "notify"


def register(
    outbox: Outbox, catalogue: RegisteredCatalogue, deps: Deps
) -> dramatiq.Actor[..., None]:
    """Attach the handler of this service and return the actor that runs it."""

    @outbox.handler(catalogue.kinds.notify_send)
    def run(execution: Execution, payload: SendNotification) -> Retry | Snooze | Fail | None:
        return send(execution, payload, deps)

    return outbox.actor(QUEUE)
