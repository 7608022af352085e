"""Reviews: what there is to judge, what the reviewers said, and the transaction that decides.

A decision by the reviewers is the review task's own commit; one by a person, or by the end of the
wait for one, is a transaction of its own that enqueues what follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.locking import LockedKey, lock_version
from shared.catalog.models import (
    Review,
    ReviewState,
    ReviewStep,
    StepOutcome,
    Verdict,
    Version,
    VersionState,
    utc_clock,
    utc_now,
)
from shared.catalog.payloads import CheckReview
from shared.catalog.review_policy import Decision, ReviewPolicy
from shared.catalog.verdicts import find_verdict
from shared.catalog.versions import is_newest_served, promote, reject
from shared.core.errors import ConflictError, NotFoundError, SupersededError

#: Who decided, where no person did.
BY_REVIEWERS = "reviewer"
BY_VERDICT = "verdict"
BY_DEADLINE = "deadline"
#: Characters of a reason that the rows keep.
REASON_CHARACTERS = 512


@dataclass(frozen=True, slots=True)
class Step:
    """What one reviewer said: an outcome of `StepOutcome` and a sentence."""

    name: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One version under review, with what is known already.

    `verdict` is an earlier decision on the same content under the same rules, None without one.
    """

    review_id: int
    version_id: int
    tenant_id: str
    sha256: str
    size_bytes: int
    content_type: str
    staging_key: str | None
    policy: ReviewPolicy
    steps: Mapping[str, Step]
    verdict: Decision | None
    verdict_reason: str


@dataclass(frozen=True, slots=True)
class Ruling:
    """A decision as it is written. Only what says something of the content is reusable."""

    decision: Decision
    by: str
    reason: str = ""
    is_reusable: bool = False


def read_case(session: Session, payload: CheckReview) -> Case | None:
    """Return what a review task has to judge, None when it is decided or waits for a person.

    Raises SupersededError when the version does not wait for its review any more.
    """
    review = session.get(Review, payload.review_id)
    version = session.get(Version, payload.version_id)
    if review is None or version is None or review.version_id != version.id:
        raise SupersededError("the version is gone", version_id=payload.version_id)
    if review.state in (ReviewState.PASSED, ReviewState.REJECTED, ReviewState.DOUBTFUL):
        return None
    if version.state != VersionState.REVIEWING or review.state != ReviewState.OPEN:
        raise SupersededError(f"the version is {version.state}", version_id=version.id)
    policy = ReviewPolicy.model_validate(review.policy)
    verdict = find_verdict(
        session,
        tenant_id=version.tenant_id,
        sha256=version.sha256,
        policy=policy,
        content_type=version.content_type,
    )
    rows = session.scalars(sa.select(ReviewStep).where(ReviewStep.review_id == review.id))
    return Case(
        review_id=review.id,
        version_id=version.id,
        tenant_id=version.tenant_id,
        sha256=version.sha256,
        size_bytes=version.size_bytes,
        content_type=version.content_type,
        staging_key=version.staging_key,
        policy=policy,
        steps={row.step: Step(row.step, row.outcome, row.detail) for row in rows},
        verdict=None if verdict is None else _decision_of(verdict),
        verdict_reason="" if verdict is None else verdict.reason,
    )


def record_steps(session: Session, review_id: int, steps: Iterable[Step]) -> None:
    """Keep what reviewers said; what was said before in the same step is replaced."""
    known = {
        row.step: row
        for row in session.scalars(sa.select(ReviewStep).where(ReviewStep.review_id == review_id))
    }
    for step in steps:
        row = known.get(step.name)
        if row is None:
            row = ReviewStep(review_id=review_id, step=step.name, created_at=utc_clock())
            session.add(row)
        row.outcome = step.outcome
        row.detail = step.detail[:REASON_CHARACTERS]
        row.ended_at = utc_clock()
    session.flush()


class ReviewCommit:
    """The commit of a review task: `lock` takes the domain rows, `apply` writes the ruling."""

    def __init__(self, catalogue: Catalogue, case: Case, *, task_id: int) -> None:
        self._catalogue = catalogue
        self._case = case
        self._task_id = task_id
        self._locked: LockedKey | None = None

    def lock(self, session: Session) -> None:
        """Lock the version's key, and with this task's row those of older unfinished work."""
        try:
            self._locked = lock_version(session, self._case.version_id, task_id=self._task_id)
        except NotFoundError as error:
            raise SupersededError(
                "the version is gone", version_id=self._case.version_id
            ) from error

    def apply(self, session: Session, ruling: Ruling, *, trace_parent: str | None = None) -> None:
        """Write the ruling and what follows from it.

        Raises SupersededError when the version or its review waits for none any more.
        """
        if self._locked is None:
            raise AssertionError("apply comes after lock")
        version = self._locked.the_version()
        review = _lock_review(session, self._case.review_id)
        if version.state != VersionState.REVIEWING or review.state != ReviewState.OPEN:
            raise SupersededError(
                "the version is not in review any more", version_id=version.id, state=version.state
            )
        _write(session, self._catalogue, self._locked, review, ruling, trace_parent=trace_parent)


def decide(
    session: Session,
    catalogue: Catalogue,
    review_id: int,
    *,
    approve: bool,
    by: str,
    reason: str = "",
    tenant_id: str | None = None,
) -> Review:
    """Carry out a person's decision on a review that waits for one, in the caller's transaction.

    Approval makes the version pending and enqueues its upload; rejection blocks it. The decision
    also counts as a verdict on the content. Raises NotFoundError (`review_not_found`) for an id
    that is not there or not this tenant's, ConflictError (`review_not_waiting`) when nobody is
    asked, and ConflictError (`superseded`) when a newer version is readable already.
    """
    decision = Decision.PASS if approve else Decision.REJECT
    ruling = Ruling(decision, by=by[:128], reason=reason, is_reusable=True)
    return _decide_waiting(session, catalogue, review_id, ruling, tenant_id=tenant_id)


def decide_overdue(session: Session, catalogue: Catalogue, review_id: int) -> bool:
    """End the wait for a person whose time is over, as the policy says; False when it is not."""
    review = session.get(Review, review_id)
    if review is None or review.state != ReviewState.DOUBTFUL:
        return False
    policy = ReviewPolicy.model_validate(review.policy)
    ruling = Ruling(policy.when_undecided, by=BY_DEADLINE, reason="nobody decided in time")
    try:
        _decide_waiting(session, catalogue, review_id, ruling, overdue=True)
    except ConflictError:
        return False
    return True


def _decide_waiting(
    session: Session,
    catalogue: Catalogue,
    review_id: int,
    ruling: Ruling,
    *,
    tenant_id: str | None = None,
    overdue: bool = False,
) -> Review:
    found = session.get(Review, review_id)
    if found is None or (tenant_id is not None and found.tenant_id != tenant_id):
        raise NotFoundError("there is no such review", code="review_not_found")
    locked = lock_version(session, found.version_id)
    review = _lock_review(session, review_id)
    version = locked.the_version()
    is_due = review.deadline_at is not None and review.deadline_at <= locked.now
    if (
        review.state != ReviewState.DOUBTFUL
        or version.state != VersionState.REVIEWING
        or (overdue and not is_due)
    ):
        raise ConflictError(
            f"the review is {review.state}, nobody is asked",
            code="review_not_waiting",
            review_id=review_id,
            state=review.state,
        )
    if ruling.decision is Decision.PASS and not is_newest_served(locked, version):
        raise ConflictError("a newer version has won", code="superseded", review_id=review_id)
    _write(session, catalogue, locked, review, ruling, trace_parent=None)
    return review


def _write(
    session: Session,
    catalogue: Catalogue,
    locked: LockedKey,
    review: Review,
    ruling: Ruling,
    *,
    trace_parent: str | None,
) -> None:
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
        _keep_verdict(session, locked.the_version(), review, policy)
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


def _keep_verdict(session: Session, version: Version, review: Review, policy: ReviewPolicy) -> None:
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


def _lock_review(session: Session, review_id: int) -> Review:
    return session.scalars(
        sa.select(Review)
        .where(Review.id == review_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one()


def _decision_of(verdict: Verdict) -> Decision:
    return Decision.PASS if verdict.outcome == StepOutcome.PASS else Decision.REJECT
