"""A run over a bucket: page by page a review for what has not passed under the present policy."""

from __future__ import annotations

from services.review.deps import Deps
from shared.catalog import fenced
from shared.catalog.payloads import ReviewAgain
from shared.catalog.rereviews.runs import (
    MOST_OPEN,
    finish_run,
    lock_run,
    open_reviews,
    plan_page,
)
from shared.core.clock import Deadline
from shared.core.failpoints import failpoint
from shared.outbox import Execution, Snooze
from shared.outbox.completion import Completion

#: Seconds until a run whose reviews are too many looks again.
_FULL_SECONDS = 5.0
#: Seconds that one execution plans for; a bucket may hold millions.
TURN_SECONDS = 30.0
_NEXT_TURN_SECONDS = 0.1


def review_again(execution: Execution, payload: ReviewAgain, deps: Deps) -> Snooze | None:
    """Make the reviews of a run; the commit of the last page completes the task.

    Each page is one fenced transaction that moves the run's cursor: an execution that was cut short
    is gone on from there. It gives its thread back now and then, for those who wait for an answer.
    """
    run_id, turn = payload.run_id, Deadline(TURN_SECONDS)
    while True:
        execution.check()
        is_open = deps.db.run_session(lambda s: open_reviews(s, run_id), read_only=True)
        if is_open >= MOST_OPEN:
            return Snooze(_FULL_SECONDS, reason=f"{is_open} of its reviews are under way")
        looked_at = fenced.fenced(
            execution,
            deps.db,
            lock=lambda s: lock_run(s, run_id),
            body=lambda s: plan_page(s, deps.catalogue, run_id),
        )
        failpoint("review.after_page")
        if not looked_at:
            break
        if turn.expired():
            return Snooze(_NEXT_TURN_SECONDS, reason="goes on at its cursor")

    def end(tx: Completion) -> None:
        tx.result = finish_run(tx.session, run_id)

    fenced.complete(execution, deps.db, lock=lambda s: lock_run(s, run_id), body=end)
    return None
