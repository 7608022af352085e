"""Re-reviews that nobody begins or waits for any more, and quarantines of stored bytes.

A release that judges differently gives every policy a new version without any bucket being changed;
runs that began where nobody served reviews have no task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.models import (
    Bucket,
    Review,
    ReviewRun,
    ReviewRunState,
    ReviewState,
    by_index,
)
from shared.catalog.quarantine import end_quarantine, overdue_quarantines
from shared.catalog.rereviews.rechecking import end_outdated
from shared.catalog.rereviews.starting import give_task, policy_changed
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.sweeps.context import PAGE_ROWS, Pass, SweepContext

_UNDECIDED = (ReviewState.OPEN, ReviewState.DOUBTFUL)


class RereviewSweep:
    """Makes one step for each row that it finds, and asks again under the row's lock.

    Policies may be large. One whose version was found right is not read again while that stands.
    """

    name = "rereviews"

    def __init__(self, context: SweepContext) -> None:
        self._context = context
        self._right: dict[int, str | None] = {}

    def run(self, turn: Pass) -> None:
        """Make one pass."""
        catalogue = self._context.catalogue
        self._each(
            turn, "policies_changed", self._stale_buckets, lambda s, one: _renew(s, catalogue, one)
        )
        # Also where nobody serves reviews: the bucket of a run may be gone.
        self._each(
            turn,
            "runs_begun",
            _runs_alone,
            lambda s, one: _give_task(s, catalogue, one),
        )
        self._each(turn, "outdated", _outdated, end_outdated)
        self._each(
            turn,
            "quarantines_ended",
            lambda s, after: overdue_quarantines(s, limit=PAGE_ROWS, after=after),
            lambda s, one: end_quarantine(s, catalogue, one),
        )

    def _each(
        self,
        turn: Pass,
        what: str,
        find: Callable[[Session, int], Sequence[int]],
        act: Callable[[Session, int], bool],
    ) -> None:
        """Act on all that is found, by ascending id."""
        db, after = self._context.db, 0
        while not turn.deadline.expired():
            page = db.run_session(lambda s, after=after: find(s, after), read_only=True)  # type: ignore[misc]
            for row_id in page:
                turn.check()
                if self._context.limits.dry_run:
                    turn.counts[what] += 1
                else:
                    turn.counts[what] += db.run_session(lambda s, one=row_id: act(s, one))  # type: ignore[misc]
            if len(page) < PAGE_ROWS:
                return
            after = page[-1]

    def _stale_buckets(self, session: Session, after: int) -> Sequence[int]:
        """Return the next buckets whose policy is another version than is written down."""
        query = sa.select(Bucket.id, Bucket.review_policy_version).where(
            Bucket.review_policy_version.is_not(None)
        )
        found: list[int] = []
        while len(found) < PAGE_ROWS:
            page = session.execute(
                query.where(Bucket.id > after).order_by(Bucket.id).limit(PAGE_ROWS)
            ).all()
            for bucket_id, version in page:
                if self._right.get(bucket_id) == version:
                    continue
                if _is_stale_now(session, bucket_id):
                    found.append(bucket_id)
                else:
                    self._right[bucket_id] = version
            if len(page) < PAGE_ROWS:
                break
            after = page[-1].id
        return found[:PAGE_ROWS]


def _is_stale_now(session: Session, bucket_id: int) -> bool:
    bucket = session.get(Bucket, bucket_id)
    if bucket is None:
        return False
    # Not all of them in memory at a time.
    session.expunge(bucket)
    return _is_stale(bucket)


def _renew(session: Session, catalogue: Catalogue, bucket_id: int) -> bool:
    """Write down a policy version that is another one by now, and review what is there again."""
    bucket = session.get(Bucket, bucket_id, with_for_update=True, populate_existing=True)
    if bucket is None or not _is_stale(bucket):
        return False
    bucket.review_policy_version = ReviewPolicy.model_validate(bucket.review_policy).version
    session.flush()
    policy_changed(session, catalogue, bucket)
    return True


def _is_stale(bucket: Bucket) -> bool:
    if bucket.review_policy is None:
        return False
    return bucket.review_policy_version != ReviewPolicy.model_validate(bucket.review_policy).version


def _give_task(session: Session, catalogue: Catalogue, run_id: int) -> bool:
    run = give_task(session, catalogue, run_id)
    return run is not None and run.task_id is not None


def _runs_alone(session: Session, after: int) -> Sequence[int]:
    query = sa.select(ReviewRun.id).where(
        ReviewRun.state == ReviewRunState.RUNNING,
        ReviewRun.task_id.is_(None),
        ReviewRun.id > after,
    )
    return session.scalars(query.order_by(ReviewRun.id).limit(PAGE_ROWS)).all()


def _outdated(session: Session, after: int) -> Sequence[int]:
    query = (
        sa.select(Review.id)
        .join(ReviewRun, ReviewRun.id == Review.run_id)
        .where(
            ReviewRun.state == ReviewRunState.SUPERSEDED,
            Review.state.in_(_UNDECIDED),
            Review.id > after,
        )
    )
    # From the runs: most that are undecided may be first reviews, of no run.
    query = by_index(query, Review, "ix_reviews_run")
    return session.scalars(query.order_by(Review.id).limit(PAGE_ROWS)).all()
