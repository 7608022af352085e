"""A decision on a review as it is written: review, verdict, and the version's next state."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.locking import LockedKey
from shared.catalog.models import (
    Review,
    ReviewState,
    StepOutcome,
    Verdict,
    Version,
    utc_clock,
    utc_now,
)
from shared.catalog.review_policy import Decision, ReviewPolicy
from shared.catalog.verdicts import find_verdict
from shared.catalog.versions import promote, reject

#: Who decided, where no person did.
BY_REVIEWERS = "reviewer"
BY_VERDICT = "verdict"
BY_DEADLINE = "deadline"
#: Characters of a reason that the rows keep.
REASON_CHARACTERS = 512


@dataclass(frozen=True, slots=True)
class Ruling:
    """A decision as it is written. Only what says something of the content is reusable."""

    decision: Decision
    by: str
    reason: str = ""
    is_reusable: bool = False


def write_ruling(
    session: Session,
    catalogue: Catalogue,
    locked: LockedKey,
    review: Review,
    ruling: Ruling,
    *,
    trace_parent: str | None,
) -> None:
    """Write a ruling on an undecided review, whose key and row the caller has locked.

    A pass enqueues the upload and supersedes the key's older unfinished work.
    """
    policy = ReviewPolicy.model_validate(review.policy)
    review.reason = ruling.reason[:REASON_CHARACTERS]
    if ruling.decision is Decision.HUMAN:
        review.state = ReviewState.DOUBTFUL
        review.deadline_at = utc_now(policy.human_seconds)
        session.flush()
        return
    is_pass = ruling.decision is Decision.PASS
    review.state = ReviewState.PASSED if is_pass else ReviewState.REJECTED
    review.decided_by = ruling.by
    review.decided_at = locked.now
    review.deadline_at = None
    session.flush()
    if ruling.is_reusable:
        keep_verdict(session, locked.the_version(), review, policy)
    if is_pass:
        promote(session, catalogue, locked, trace_parent=trace_parent)
        return
    reject(
        session,
        catalogue,
        locked,
        code="rejected",
        quarantine_seconds=policy.quarantine_seconds,
        # What only a failure or the end of a wait decided may be looked at again.
        is_final=ruling.is_reusable or ruling.by == BY_VERDICT,
    )


def keep_verdict(session: Session, version: Version, review: Review, policy: ReviewPolicy) -> None:
    """Let the decision count for the same content under the same rules; the latest one counts."""
    outcome = StepOutcome.PASS if review.state == ReviewState.PASSED else StepOutcome.REJECT
    for is_last_try in (False, True):
        row = find_verdict(
            session,
            tenant_id=version.tenant_id,
            sha256=version.sha256,
            policy=policy,
            content_type=version.content_type,
        )
        if row is not None:
            row.outcome, row.reason, row.review_id = outcome, review.reason, review.id
            session.flush()
            return
        try:
            with session.begin_nested():
                session.add(
                    Verdict(
                        tenant_id=version.tenant_id,
                        sha256=version.sha256,
                        policy_version=policy.version,
                        declared_type=policy.declared_key(version.content_type),
                        outcome=outcome,
                        reason=review.reason,
                        review_id=review.id,
                        created_at=utc_clock(),
                    )
                )
            return
        except sa.exc.IntegrityError:
            # Another review of the same content was decided just now.
            if is_last_try:
                raise


def lock_review(session: Session, review_id: int) -> Review:
    """Lock a review's row, after the object's."""
    return session.scalars(
        sa.select(Review)
        .where(Review.id == review_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one()
