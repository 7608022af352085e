"""The Dramatiq actor of the queue, and its handler bound to what it works with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.origin.deps import Deps
from services.origin.handlers import pull
from shared.catalog.kinds import RegisteredCatalogue
from shared.catalog.payloads import PullOrigin
from shared.outbox import Execution, Fail, Retry, Snooze

if TYPE_CHECKING:
    import dramatiq

    from shared.outbox.outbox import Outbox

QUEUE = "origin"


def register(
    outbox: Outbox, catalogue: RegisteredCatalogue, deps: Deps
) -> dramatiq.Actor[..., None]:
    """Attach the handler of this service and return the actor that runs it."""

    @outbox.handler(catalogue.kinds.origin_pull)
    def run(execution: Execution, payload: PullOrigin) -> Retry | Snooze | Fail | None:
        return pull(execution, payload, deps)

    return outbox.actor(QUEUE)
