"""The review of a version that has passed before and is served: what it may change, and when.

Only what was found in the content blocks it. Reviewers that could not look leave it as it was:
bytes that are stored are not deleted because somebody did not answer.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from shared.catalog.blobs import dispose_staged, drop_reference
from shared.catalog.context import Catalogue
from shared.catalog.locking import LockedKey, lock_tasks, lock_version
from shared.catalog.models import (
    SERVED,
    HolderKind,
    Review,
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

#: Rulings of the content itself, beside those that may be used again.
_JUDGED_BY = frozenset({BY_VERDICT, BY_DEADLINE})
_CODE = "rejected"


def read_recheck(session: Session, payload: CheckReview) -> Case | None:
    """Return what a re-review has to judge, None when it is decided or waits for a person.

    Raises SupersededError when the version is served no more.
    """
    review = session.get(Review, payload.review_id)
    version = session.get(Version, payload.version_id)
    if review is None or version is None or review.version_id != version.id:
        raise SupersededError("the version is gone", version_id=payload.version_id)
    if review.state in (ReviewState.OPEN, ReviewState.SUPERSEDED) and version.state not in SERVED:
        raise SupersededError(f"the version is {version.state}", version_id=version.id)
    if review.state != ReviewState.OPEN:
        return None
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
        """Write the ruling; raises SupersededError when the version is served no more."""
        if self._locked is None:
            raise AssertionError("apply comes after lock")
        version = self._locked.the_version()
        review = lock_review(session, self._case.review_id)
        if version.state not in SERVED or review.state != ReviewState.OPEN:
            raise SupersededError(
                "the version is not to be reviewed", version_id=version.id, state=version.state
            )
        write_recheck(session, self._catalogue, self._locked, review, ruling)


def decide_waiting(session: Session, catalogue: Catalogue, found: Review, ruling: Ruling) -> Review:
    """Carry out a person's decision. Raises ConflictError when nobody is asked any more."""
    locked = lock_version(session, found.version_id)
    review = lock_review(session, found.id)
    version = locked.the_version()
    if review.state != ReviewState.DOUBTFUL or version.state not in SERVED:
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
    policy = ReviewPolicy.model_validate(review.policy)
    ruling = Ruling(policy.when_undecided, by=BY_DEADLINE, reason="nobody decided in time")
    write_recheck(session, catalogue, locked, review, ruling)
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
    """Let a served version be readable no more; stored bytes go by the rules of deletion."""
    version = locked.the_version()
    was_stored = version.state == VersionState.STORED
    version.state = VersionState.BLOCKED
    version.ended_at = locked.now
    version.error_code = _CODE
    session.flush()
    blob = locked.blob_of(version)
    if was_stored:
        drop_reference(session, catalogue, blob, HolderKind.VERSION, version.id)
    else:
        version.staging_until = utc_now(quarantine_seconds)
        session.flush()
        dispose_staged(session, catalogue, blob)
    refresh(session, locked)
    emit(session, catalogue, version, EventType.BLOCKED)
    if not was_stored and version.task_id is not None:
        catalogue.tasks.supersede(session, [version.task_id])
