"""Reviews: the transactions that decide.

A decision by the reviewers is the review task's own commit; one by a person, or by the end of the
wait for one, is a transaction of its own that enqueues what follows.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.locking import LockedKey, keep_bucket, lock_version
from shared.catalog.models import Review, ReviewState, VersionState
from shared.catalog.rereviews import rechecking
from shared.catalog.review_cases import Case
from shared.catalog.review_policy import Decision, ReviewPolicy
from shared.catalog.rulings import BY_DEADLINE, Ruling, lock_review, write_ruling
from shared.catalog.versions import is_newest_served
from shared.core.errors import ConflictError, NotFoundError, SupersededError


class ReviewCommit:
    """The commit of a review task: `lock` takes the domain rows, `apply` writes the ruling."""

    def __init__(self, catalogue: Catalogue, case: Case, *, task_id: int) -> None:
        self._catalogue = catalogue
        self._case = case
        self._task_id = task_id
        self._locked: LockedKey | None = None

    def lock(self, session: Session) -> None:
        """Lock the version's key, and with this task's row those of older unfinished work.

        The bucket's lock is shared: its rules stay what they are.
        """
        keep_bucket(session, self._case.version_id)
        try:
            self._locked = lock_version(session, self._case.version_id, task_id=self._task_id)
        except NotFoundError as error:
            raise SupersededError(
                "the version is gone", version_id=self._case.version_id
            ) from error

    @property
    def released(self) -> tuple[str, ...]:
        """The staging files that nobody needs any more, once it is committed."""
        return () if self._locked is None else tuple(self._locked.released)

    def apply(self, session: Session, ruling: Ruling, *, trace_parent: str | None = None) -> None:
        """Write the ruling and what follows from it.

        Raises SupersededError when the version or its review waits for none any more.
        """
        if self._locked is None:
            raise AssertionError("apply comes after lock")
        version = self._locked.the_version()
        review = lock_review(session, self._case.review_id)
        if version.state != VersionState.REVIEWING or review.state != ReviewState.OPEN:
            raise SupersededError(
                "the version is not in review any more", version_id=version.id, state=version.state
            )
        write_ruling(
            session, self._catalogue, self._locked, review, ruling, trace_parent=trace_parent
        )


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
    asked, ConflictError (`superseded`) when a newer version is readable already, and
    SwitchedOffError for an approval where nobody stores.
    """
    decision = Decision.PASS if approve else Decision.REJECT
    ruling = Ruling(decision, by=by[:128], reason=reason, is_reusable=True)
    return _decide_waiting(session, catalogue, review_id, ruling, tenant_id=tenant_id)


def decide_overdue(session: Session, catalogue: Catalogue, review_id: int) -> bool:
    """End the wait for a person whose time is over, as the policy says; False when it is not."""
    review = session.get(Review, review_id)
    if review is None or review.state != ReviewState.DOUBTFUL:
        return False
    if review.run_id != 0:
        return rechecking.decide_overdue(session, catalogue, review)
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
    if found.run_id != 0:
        return rechecking.decide_waiting(session, catalogue, found, ruling)
    if ruling.decision is Decision.PASS and not overdue:
        catalogue.need("upload")
    keep_bucket(session, found.version_id)
    locked = lock_version(session, found.version_id)
    review = lock_review(session, review_id)
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
    write_ruling(session, catalogue, locked, review, ruling, trace_parent=None)
    return review
