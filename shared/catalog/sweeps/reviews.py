"""Reviews whose wait for a person is over: decided as their policies say."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Review, ReviewState, utc_now
from shared.catalog.reviewing import decide_overdue
from shared.catalog.sweeps.context import PAGE_ROWS, Pass, SweepContext


class Overdue(NamedTuple):
    """A review whose wait is over, and since when."""

    deadline_at: dt.datetime
    id: int


class ReviewSweep:
    """Ends waits: every one has a deadline."""

    name = "reviews"

    def __init__(self, context: SweepContext) -> None:
        self._context = context

    def run(self, turn: Pass) -> None:
        """Make one pass. One that cannot be decided holds up none behind it."""
        after: Overdue | None = None
        while not turn.deadline.expired() and (page := self._page(after)):
            after = page[-1]
            for review in page:
                turn.check()
                turn.counts["overdue"] += 1
                if not self._context.limits.dry_run:
                    self._decide(review.id)

    def _page(self, after: Overdue | None) -> Sequence[Overdue]:
        return self._context.db.run_session(
            lambda session: _overdue(session, after), read_only=True
        )

    def _decide(self, review_id: int) -> None:
        self._context.db.run_session(
            lambda session: decide_overdue(session, self._context.catalogue, review_id)
        )


def _overdue(session: Session, after: Overdue | None) -> Sequence[Overdue]:
    statement = sa.select(Review.deadline_at, Review.id).where(
        Review.state == ReviewState.DOUBTFUL, Review.deadline_at <= utc_now()
    )
    if after is not None:
        statement = statement.where(
            Review.deadline_at >= after.deadline_at,
            sa.or_(Review.deadline_at > after.deadline_at, Review.id > after.id),
        )
    rows = session.execute(statement.order_by(Review.deadline_at, Review.id).limit(PAGE_ROWS))
    return [Overdue(since, review_id) for since, review_id in rows if since is not None]
