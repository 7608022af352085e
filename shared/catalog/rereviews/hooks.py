"""What happens when a run, or one of its reviews, ends without its handler."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.asking import ask_again, lock_steps
from shared.catalog.context import Catalogue
from shared.catalog.locking import lock_version
from shared.catalog.models import (
    SERVED,
    Bucket,
    Review,
    ReviewRun,
    ReviewRunState,
    ReviewState,
    Version,
    utc_clock,
    utc_now,
)
from shared.catalog.payloads import CheckReview, ReviewAgain
from shared.catalog.rereviews.rechecking import OUTDATED, end_recheck, is_outdated
from shared.catalog.rereviews.runs import lock_run
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.rulings import lock_review
from shared.core.errors import ConflictError
from shared.outbox.kinds import EndedTask

#: Who decided where reviewers failed.
FAIL_MODE = "fail-mode"


class RecheckHooks:
    """Hooks of `review.recheck`: an end that nobody judged changes nothing that is stored."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def lock(self, session: Session, payload: CheckReview) -> None:
        """Lock the version's key, then what its reviewers were asked."""
        if session.get(Version, payload.version_id) is not None:
            lock_version(session, payload.version_id)
        lock_steps(session, payload.review_id)

    def on_end(self, session: Session, task: EndedTask, outcome: str) -> None:
        """End the review; only fail mode `human` asks somebody, only `open` calls it passed."""
        review = _review(session, task)
        if review is None or review.state != ReviewState.OPEN:
            return
        reason = f"the review ended as {outcome}: {task.error_code or ''}".rstrip(": ")
        version = session.get(Version, review.version_id)
        if version is None or version.state not in SERVED:
            end_recheck(session, review, ReviewState.SUPERSEDED, "the version is over")
            return
        if is_outdated(session, review):
            end_recheck(session, review, ReviewState.SUPERSEDED, OUTDATED)
            return
        policy = ReviewPolicy.model_validate(review.policy)
        mode = "closed" if outcome == "cancelled" else policy.fail_mode
        if mode == "human":
            review.state, review.reason = ReviewState.DOUBTFUL, reason[:512]
            review.deadline_at = utc_now(policy.human_seconds)
            session.flush()
            return
        state = ReviewState.PASSED if mode == "open" else ReviewState.FAILED
        end_recheck(session, review, state, reason, by=FAIL_MODE)

    def on_retry(self, session: Session, task: EndedTask) -> None:
        """Open the review again, unless it was judged. Raises ConflictError."""
        review = _review(session, task)
        version = None if review is None else session.get(Version, review.version_id)
        if review is None or version is None or version.state not in SERVED:
            raise ConflictError("the version is over", code="version_over")
        if is_outdated(session, review):
            raise ConflictError(OUTDATED, code="re_review_over", review_id=review.id)
        if review.state == ReviewState.SUPERSEDED or review.decided_by not in (None, FAIL_MODE):
            raise ConflictError("the review is decided", code="review_decided", review_id=review.id)
        ask_again(session, review.id)
        review.state, review.reason = ReviewState.OPEN, ""
        review.decided_by = review.decided_at = review.deadline_at = None
        session.flush()


class RunHooks:
    """Hooks of `review.again`."""

    def lock(self, session: Session, payload: ReviewAgain) -> None:
        """Lock the bucket, which has one run at a time, and the run."""
        run = session.get(ReviewRun, payload.run_id)
        if run is not None:
            session.get(Bucket, run.bucket_id, with_for_update=True, populate_existing=True)
        lock_run(session, payload.run_id)

    def on_end(self, session: Session, task: EndedTask, outcome: str) -> None:
        """End the run where it stands; what it has made goes on."""
        run = _run(session, task)
        if run is None or run.state != ReviewRunState.RUNNING:
            return
        is_cancelled = outcome == ReviewRunState.CANCELLED
        run.state = ReviewRunState.CANCELLED if is_cancelled else ReviewRunState.FAILED
        run.error_code = task.error_code or outcome
        run.ended_at = utc_clock()
        session.flush()

    def on_retry(self, session: Session, task: EndedTask) -> None:
        """Let the run go on from its cursor.

        Raises ConflictError when the bucket's rules are others by now, and while another run is
        under way.
        """
        run = _run(session, task)
        if run is None or run.state in (ReviewRunState.PLANNED, ReviewRunState.SUPERSEDED):
            raise ConflictError("the run is over", code="re_review_over")
        bucket = session.get(Bucket, run.bucket_id)
        if bucket is None or bucket.review_policy_version != run.policy_version:
            raise ConflictError(OUTDATED, code="re_review_over", run_id=run.id)
        other = session.scalar(
            sa.select(ReviewRun.id).where(
                ReviewRun.bucket_id == run.bucket_id,
                ReviewRun.state == ReviewRunState.RUNNING,
                ReviewRun.id != run.id,
            )
        )
        if other is not None:
            raise ConflictError("another run is under way", code="re_review_running", run_id=other)
        run.state = ReviewRunState.RUNNING
        run.error_code = run.ended_at = None
        session.flush()


def _review(session: Session, task: EndedTask) -> Review | None:
    if not isinstance(task.payload, CheckReview):
        raise TypeError(f"the payload of {task.kind} names no review")
    if session.get(Review, task.payload.review_id) is None:
        return None
    review = lock_review(session, task.payload.review_id)
    return review if review.task_id == task.id else None


def _run(session: Session, task: EndedTask) -> ReviewRun | None:
    if not isinstance(task.payload, ReviewAgain):
        raise TypeError(f"the payload of {task.kind} names no run")
    return session.get(ReviewRun, task.payload.run_id)
