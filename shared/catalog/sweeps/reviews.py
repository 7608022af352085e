"""Reviews whose wait for a person is over: decided as their policies say."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Review, ReviewState, utc_now
from shared.catalog.reviewing import decide_overdue
from shared.catalog.sweeps.context import PAGE_ROWS, Pass, SweepContext


class ReviewSweep:
    """Ends waits: every one has a deadline."""

    name = "reviews"

    def __init__(self, context: SweepContext) -> None:
        self._context = context

    def run(self, turn: Pass) -> None:
        """Make one pass."""
        for review_id in self._context.db.run_session(_overdue, read_only=True):
            turn.check()
            turn.counts["overdue"] += 1
            if not self._context.limits.dry_run:
                self._decide(review_id)

    def _decide(self, review_id: int) -> None:
        self._context.db.run_session(
            lambda session: decide_overdue(session, self._context.catalogue, review_id)
        )


def _overdue(session: Session) -> Sequence[int]:
    return session.scalars(
        sa.select(Review.id)
        .where(Review.state == ReviewState.DOUBTFUL, Review.deadline_at <= utc_now())
        .order_by(Review.deadline_at)
        .limit(PAGE_ROWS)
    ).all()
