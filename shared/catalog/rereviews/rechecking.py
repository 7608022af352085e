"""The review of a version that has passed before and is served: what it may change, and when.

Only what was found in the content blocks it. Reviewers that could not look leave it as it was:
bytes that are stored are not deleted because somebody did not answer.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.blobs import add_reference, dispose_staged, drop_reference
from shared.catalog.context import Catalogue
from shared.catalog.locking import LockedKey, lock_tasks, lock_version
from shared.catalog.models import (
    SERVED,
    HolderKind,
    Review,
    ReviewRun,
    ReviewRunState,
    ReviewState,
    Version,
    VersionState,
    utc_now,
)
from shared.catalog.notifying.emitting import EventType, emit
from shared.catalog.payloads import CheckReview
from shared.catalog.review_cases import Case, case_of
from shared.catalog.review_policy import Decision, ReviewPolicy
from shared.catalog.rulings import (
    BY_DEADLINE,
    BY_VERDICT,
    REASON_CHARACTERS,
    Ruling,
    keep_verdict,
    lock_review,
)
from shared.catalog.versions import refresh
from shared.core.errors import ConflictError, NotFoundError, SupersededError

#: Why a review under rules that have changed decides nothing.
OUTDATED = "the bucket's rules have changed since"
#: Rulings of the content itself, beside those that may be used again.
_JUDGED_BY = frozenset({BY_VERDICT, BY_DEADLINE})
_CODE = "rejected"


def is_outdated(session: Session, review: Review) -> bool:
    """Tell whether a run under newer rules has taken the place of a review's own."""
    state = session.scalar(sa.select(ReviewRun.state).where(ReviewRun.id == review.run_id))
    return state == ReviewRunState.SUPERSEDED


def read_recheck(session: Session, payload: CheckReview) -> Case | None:
    """Return what a re-review has to judge, None when it is decided or waits for a person.

    Raises SupersededError when the version is served no more, or the rules have changed.
    """
    review = session.get(Review, payload.review_id)
    version = session.get(Version, payload.version_id)
    if review is None or version is None or review.version_id != version.id:
        raise SupersededError("the version is gone", version_id=payload.version_id)
    if review.state in (ReviewState.OPEN, ReviewState.SUPERSEDED) and version.state not in SERVED:
        raise SupersededError(f"the version is {version.state}", version_id=version.id)
    if review.state != ReviewState.OPEN:
        return None
    if is_outdated(session, review):
        raise SupersededError(OUTDATED, review_id=review.id)
    return case_of(session, review, version)


class RecheckCommit:
    """The commit of a re-review's task: `lock` takes the domain rows, `apply` writes the ruling."""

    def __init__(self, catalogue: Catalogue, case: Case, *, task_id: int) -> None:
        self._catalogue = catalogue
        self._case = case
        self._task_id = task_id
        self._locked: LockedKey | None = None

    def lock(self, session: Session) -> None:
        """Lock the version's key, and with this task's row that of its own upload."""
        try:
            self._locked = lock_version(session, self._case.version_id)
        except NotFoundError as error:
            raise SupersededError(
                "the version is gone", version_id=self._case.version_id
            ) from error
        upload = self._locked.the_version().task_id
        lock_tasks(session, [self._task_id, *([] if upload is None else [upload])])

    @property
    def released(self) -> tuple[str, ...]:
        """Staging files that nobody needs any more: none, blocked bytes go into quarantine."""
        return ()

    def apply(self, session: Session, ruling: Ruling, *, trace_parent: str | None = None) -> None:
        """Write the ruling.

        Raises SupersededError when the version is served no more, or the rules have changed.
        """
        if self._locked is None:
            raise AssertionError("apply comes after lock")
        version = self._locked.the_version()
        review = lock_review(session, self._case.review_id)
        if version.state not in SERVED or review.state != ReviewState.OPEN:
            raise SupersededError(
                "the version is not to be reviewed", version_id=version.id, state=version.state
            )
        if is_outdated(session, review):
            raise SupersededError(OUTDATED, review_id=review.id)
        write_recheck(session, self._catalogue, self._locked, review, ruling)


def decide_waiting(session: Session, catalogue: Catalogue, found: Review, ruling: Ruling) -> Review:
    """Carry out a person's decision. Raises ConflictError when nobody is asked any more."""
    locked = lock_version(session, found.version_id)
    review = lock_review(session, found.id)
    version = locked.the_version()
    is_over = version.state not in SERVED or is_outdated(session, review)
    if review.state != ReviewState.DOUBTFUL or is_over:
        raise ConflictError(
            f"the review is {review.state}, its version {version.state}: nobody is asked",
            code="review_not_waiting",
            review_id=review.id,
            state=review.state,
        )
    write_recheck(session, catalogue, locked, review, ruling)
    return review


def decide_overdue(session: Session, catalogue: Catalogue, found: Review) -> bool:
    """End the wait for a person whose time is over; False when it is not."""
    locked = lock_version(session, found.version_id)
    review = lock_review(session, found.id)
    is_due = review.deadline_at is not None and review.deadline_at <= locked.now
    if review.state != ReviewState.DOUBTFUL or not is_due:
        return False
    if locked.the_version().state not in SERVED:
        end_recheck(session, review, ReviewState.SUPERSEDED, "the version is over")
        return True
    if is_outdated(session, review):
        end_recheck(session, review, ReviewState.SUPERSEDED, OUTDATED)
        return True
    policy = ReviewPolicy.model_validate(review.policy)
    ruling = Ruling(policy.when_undecided, by=BY_DEADLINE, reason="nobody decided in time")
    write_recheck(session, catalogue, locked, review, ruling)
    return True


def end_outdated(session: Session, review_id: int) -> bool:
    """End an undecided review whose rules have changed; False when it is over, or they have not."""
    review = lock_review(session, review_id)
    is_undecided = review.state in (ReviewState.OPEN, ReviewState.DOUBTFUL)
    if not is_undecided or not is_outdated(session, review):
        return False
    # Its task finds that out when it looks for something to judge.
    end_recheck(session, review, ReviewState.SUPERSEDED, OUTDATED)
    return True


def write_recheck(
    session: Session, catalogue: Catalogue, locked: LockedKey, review: Review, ruling: Ruling
) -> None:
    """Write a ruling on a version that is served; the caller has locked key and review.

    A rejection blocks the version. It also ends the version's own upload, whose task the caller
    has locked if it holds any.
    """
    policy = ReviewPolicy.model_validate(review.policy)
    if ruling.decision is Decision.HUMAN:
        review.state = ReviewState.DOUBTFUL
        review.reason = ruling.reason[:REASON_CHARACTERS]
        review.deadline_at = utc_now(policy.human_seconds)
        session.flush()
        return
    is_judged = ruling.is_reusable or ruling.by in _JUDGED_BY
    if ruling.decision is Decision.PASS:
        state = ReviewState.PASSED
    else:
        state = ReviewState.REJECTED if is_judged else ReviewState.FAILED
    end_recheck(session, review, state, ruling.reason, by=ruling.by)
    if ruling.is_reusable:
        keep_verdict(session, locked.the_version(), review, policy)
    if state is ReviewState.REJECTED:
        _block(session, catalogue, locked, quarantine_seconds=policy.quarantine_seconds)


def end_recheck(
    session: Session, review: Review, state: ReviewState, reason: str, *, by: str | None = None
) -> None:
    """End a re-review, whatever its version does."""
    review.state = state
    review.reason = reason[:REASON_CHARACTERS]
    review.decided_by = by
    review.decided_at = utc_now()
    review.deadline_at = None
    session.flush()


def _block(
    session: Session, catalogue: Catalogue, locked: LockedKey, *, quarantine_seconds: float
) -> None:
    """Let a served version be readable no more; its bytes are kept for the quarantine.

    Stored ones stay on their channels: the quarantine holds them, and after it they go by the rules
    of deletion.
    """
    version = locked.the_version()
    was_stored = version.state == VersionState.STORED
    version.state = VersionState.BLOCKED
    version.ended_at = locked.now
    version.error_code = _CODE
    is_kept = not was_stored or quarantine_seconds > 0
    version.staging_until = utc_now(quarantine_seconds) if is_kept else None
    session.flush()
    blob = locked.blob_of(version)
    if was_stored:
        if is_kept:
            # Before its own reference goes, so that the content is never without one.
            add_reference(session, blob, HolderKind.QUARANTINE, version.id)
        drop_reference(session, catalogue, blob, HolderKind.VERSION, version.id)
    else:
        dispose_staged(session, catalogue, blob)
    refresh(session, locked)
    emit(session, catalogue, version, EventType.BLOCKED)
    if not was_stored and version.task_id is not None:
        catalogue.tasks.supersede(session, [version.task_id])
