"""The Dramatiq actor of the queue, and its handlers bound to what they work with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.review.again import review_again
from services.review.handlers import Deps, check, recheck
from shared.catalog.kinds import RegisteredCatalogue
from shared.catalog.payloads import CheckReview, ReviewAgain
from shared.outbox import Execution, Snooze

if TYPE_CHECKING:
    import dramatiq

    from shared.outbox.outbox import Outbox

QUEUE = "review"


def register(
    outbox: Outbox, catalogue: RegisteredCatalogue, deps: Deps
) -> dramatiq.Actor[..., None]:
    """Attach the handlers of this service and return the actor that runs them."""

    @outbox.handler(catalogue.kinds.review_check)
    def run(execution: Execution, payload: CheckReview) -> Snooze | None:
        return check(execution, payload, deps)

    @outbox.handler(catalogue.kinds.review_recheck)
    def run_again(execution: Execution, payload: CheckReview) -> Snooze | None:
        return recheck(execution, payload, deps)

    @outbox.handler(catalogue.kinds.review_again)
    def plan(execution: Execution, payload: ReviewAgain) -> Snooze | None:
        return review_again(execution, payload, deps)

    return outbox.actor(QUEUE)
