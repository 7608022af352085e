"""What happens to the catalogue when an upload or a review task ends without its handler.

The outbox calls `lock` before it locks the task's row, then `on_end` or `on_retry` in the same
transaction.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.asking import ask_again, lock_steps
from shared.catalog.context import Catalogue
from shared.catalog.locking import LockedKey, keep_bucket, lock_version
from shared.catalog.models import (
    BlobState,
    Bucket,
    Review,
    ReviewState,
    Version,
    VersionState,
    utc_now,
)
from shared.catalog.notifying.emitting import EventType, emit
from shared.catalog.payloads import CheckReview, StoreUpload
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.supersede import end_versions
from shared.catalog.versions import is_newest_served, promote, refresh, reject
from shared.core.errors import ConflictError
from shared.outbox.kinds import EndedTask

#: Who decided a review that nobody looked at to the end.
FAIL_MODE = "fail-mode"
_SUPERSEDED = "superseded"
_CANCELLED = "cancelled"


class UploadHooks:
    """Hooks of `upload.store`: acknowledged bytes are never dropped because a task ended."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def lock(self, session: Session, payload: StoreUpload) -> None:
        """Lock the version's key."""
        _lock(session, payload.version_id)

    def on_end(self, session: Session, task: EndedTask, outcome: str) -> None:
        """Set a version that is still pending to failed, or superseded when a newer one is served.

        A failed version stays readable from its staging bytes until it is retried, superseded or
        deleted.
        """
        locked = _find(session, task, VersionState.PENDING)
        if locked is None:
            return
        version = locked.the_version()
        if task.error_code == _SUPERSEDED and not is_newest_served(locked, version):
            end_versions(session, self._catalogue, locked, [version], state=VersionState.SUPERSEDED)
        else:
            version.state = VersionState.FAILED
            version.ended_at = locked.now
            version.error_code = task.error_code or outcome
            emit(session, self._catalogue, version, EventType.FAILED)
        refresh(session, locked)

    def on_retry(self, session: Session, task: EndedTask) -> None:
        """Set a failed version back to pending.

        Raises ConflictError when it is not failed, its bytes are gone, or something newer won.
        """
        locked = _retryable(session, task, {VersionState.FAILED, VersionState.PENDING})
        version = locked.the_version()
        version.state = VersionState.PENDING
        version.ended_at = None
        version.error_code = None
        version.task_id = task.id
        refresh(session, locked)


class ReviewHooks:
    """Hooks of `review.check`: nothing passes, and nothing waits for ever, by accident."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def lock(self, session: Session, payload: CheckReview) -> None:
        """Lock the version's key, then what its reviewers were asked."""
        _lock(session, payload.version_id)
        lock_steps(session, payload.review_id)

    def on_end(self, session: Session, task: EndedTask, outcome: str) -> None:
        """Decide by the policy's fail mode; a cancelled review never lets anything pass."""
        locked = _find(session, task, VersionState.REVIEWING)
        if locked is None:
            return
        version = locked.the_version()
        if task.error_code == _SUPERSEDED and not is_newest_served(locked, version):
            end_versions(session, self._catalogue, locked, [version], state=VersionState.SUPERSEDED)
            refresh(session, locked)
            return
        review = _review(session, version.id)
        policy = ReviewPolicy.model_validate(review.policy)
        mode = "closed" if outcome == _CANCELLED else policy.fail_mode
        review.reason = f"the review ended as {outcome}: {task.error_code or ''}".rstrip(": ")[:512]
        if mode == "human":
            review.state = ReviewState.DOUBTFUL
            review.deadline_at = utc_now(policy.human_seconds)
            session.flush()
            return
        review.state = ReviewState.PASSED if mode == "open" else ReviewState.REJECTED
        review.decided_by = FAIL_MODE
        review.decided_at = locked.now
        if mode == "open":
            promote(session, self._catalogue, locked, end_tasks=False)
            return
        reject(
            session,
            self._catalogue,
            locked,
            code=task.error_code or outcome,
            quarantine_seconds=policy.quarantine_seconds,
            is_final=False,
        )

    def on_retry(self, session: Session, task: EndedTask) -> None:
        """Open the review again, unless a reviewer or a person has decided it.

        Raises ConflictError when it is decided, its bytes are gone, or something newer won.
        """
        locked = _retryable(session, task, {VersionState.REVIEWING, VersionState.BLOCKED})
        version = locked.the_version()
        review = _review(session, version.id)
        if review.state == ReviewState.SUPERSEDED or review.decided_by not in (None, FAIL_MODE):
            raise ConflictError("the review is decided", code="review_decided", review_id=review.id)
        ask_again(session, review.id)
        review.state = ReviewState.OPEN
        review.reason = ""
        review.decided_by = None
        review.decided_at = None
        review.deadline_at = None
        version.state = VersionState.REVIEWING
        version.ended_at = None
        version.staging_until = None
        version.error_code = None
        version.task_id = task.id
        refresh(session, locked)


def _lock(session: Session, version_id: int) -> None:
    if session.get(Version, version_id) is None:
        return  # A version that is gone has nothing to protect.
    keep_bucket(session, version_id)
    lock_version(session, version_id)


def _find(session: Session, task: EndedTask, state: VersionState) -> LockedKey | None:
    """Return the task's version, locked, if it is in this state and this is its task."""
    version_id = _version_id(task)
    version = session.get(Version, version_id)
    if version is None or version.task_id != task.id or version.state != state:
        return None
    locked = lock_version(session, version_id)
    return locked if locked.the_version().state == state else None


def _retryable(session: Session, task: EndedTask, states: set[VersionState]) -> LockedKey:
    locked = lock_version(session, _version_id(task))
    version = locked.the_version()
    if version.state not in states:
        raise ConflictError(
            f"the version is {version.state}", code="version_over", version_id=version.id
        )
    if session.get(Bucket, version.bucket_id) is None:
        raise ConflictError("the bucket is gone", code="bucket_gone", version_id=version.id)
    if not is_newest_served(locked, version):
        raise ConflictError("a newer version has won", code="superseded", version_id=version.id)
    if version.staging_key is None or locked.blob_of(version).state != BlobState.STAGED:
        raise ConflictError("the bytes are gone", code="bytes_gone", version_id=version.id)
    return locked


def _review(session: Session, version_id: int) -> Review:
    return session.scalars(
        sa.select(Review)
        .where(Review.version_id == version_id, Review.run_id == 0)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one()


def _version_id(task: EndedTask) -> int:
    if not isinstance(task.payload, StoreUpload | CheckReview):
        raise TypeError(f"the payload of {task.kind} names no version")
    return task.payload.version_id
