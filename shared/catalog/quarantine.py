"""What a review has blocked, while its bytes are kept: released by a person, or destroyed early.

Nothing else reads these bytes. They lie in staging, or on channels when they were stored before: a
reference of the quarantine holds them there. When their time is over, the sweeps let go of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.blobs import dispose_staged, drop_reference
from shared.catalog.context import Catalogue
from shared.catalog.locking import LockedKey, lock_version, share_bucket
from shared.catalog.models import (
    Blob,
    BlobRef,
    BlobState,
    HolderKind,
    Review,
    ReviewState,
    Version,
    VersionState,
    utc_clock,
)
from shared.catalog.rereviews.latecomers import follow_change
from shared.catalog.rereviews.rechecking import write_recheck
from shared.catalog.review_policy import Decision
from shared.catalog.rulings import REASON_CHARACTERS, Ruling, lock_review, write_ruling
from shared.catalog.versions import is_newest_served, make_current
from shared.core.errors import ConflictError, NotFoundError

#: Of a blocked version whose key was deleted or moved away after it was blocked.
_DELETED_SINCE = "deleted_since"
#: Of a version: its bytes are on channels, and the quarantine holds them.
_HELD = sa.exists().where(
    BlobRef.holder_kind == HolderKind.QUARANTINE,
    BlobRef.holder_id == Version.id,
    BlobRef.blob_id == Version.blob_id,
)


def release(
    session: Session,
    catalogue: Catalogue,
    review_id: int,
    *,
    by: str,
    reason: str = "",
    tenant_id: str | None = None,
) -> Review:
    """Let blocked content pass after all: its version is pending and its upload enqueued.

    What was stored when it was blocked is stored again at once. It also counts as a verdict on the
    content. Raises NotFoundError (`review_not_found`) and
    ConflictError: `review_not_rejected`, `bytes_gone`, `bucket_gone`, or `superseded` when the key
    was written or deleted since.
    """
    locked, review = _locked(session, review_id, tenant_id)
    version = locked.the_version()
    if version.staging_key is not None:
        catalogue.need("upload")
    if not is_newest_served(locked, version) or version.error_code == _DELETED_SINCE:
        raise ConflictError(
            "the key was written or deleted since", code="superseded", review_id=review_id
        )
    ruling = Ruling(Decision.PASS, by=by[:128], reason=reason, is_reusable=True)
    if version.staging_key is None:
        _store_again(session, catalogue, locked)
        write_recheck(session, catalogue, locked, review, ruling)
        follow_change(session, catalogue, version, judged_by=review.policy_version)
        return review
    if locked.blob_of(version).state != BlobState.STAGED:
        blob = Blob(
            tenant_id=version.tenant_id,
            sha256=version.sha256,
            size_bytes=version.size_bytes,
            state=BlobState.STAGED,
            generation=1,
            created_at=locked.now,
        )
        session.add(blob)
        session.flush()
        locked.blobs[blob.id] = blob
        version.blob_id = review.blob_id = blob.id
    version.staging_until = None
    write_ruling(session, catalogue, locked, review, ruling, trace_parent=None)
    return review


def destroy(
    session: Session,
    catalogue: Catalogue,
    review_id: int,
    *,
    by: str,
    reason: str = "",
    tenant_id: str | None = None,
) -> str | None:
    """End a quarantine now; returns the staging file to be removed after the commit, if any.

    What was stored before goes by the rules of deletion. Raises NotFoundError and ConflictError as
    `release` does. The verdict stands.
    """
    locked, review = _locked(session, review_id, tenant_id)
    version = locked.the_version()
    key = version.staging_key
    version.staging_key = version.staging_until = None
    note = f"destroyed by {by}: {reason}".rstrip(": ")
    review.reason = f"{review.reason}; {note}".lstrip("; ")[:REASON_CHARACTERS]
    session.flush()
    blob = locked.blob_of(version)
    dispose_staged(session, catalogue, blob)
    drop_reference(session, catalogue, blob, HolderKind.QUARANTINE, version.id)
    return key


def overdue_quarantines(session: Session, *, limit: int, after: int = 0) -> Sequence[int]:
    """Return the versions behind `after` whose stored bytes have been kept for long enough."""
    statement = (
        sa.select(Version.id)
        .join(BlobRef, BlobRef.holder_id == Version.id)
        .where(
            BlobRef.holder_kind == HolderKind.QUARANTINE,
            BlobRef.holder_id > after,
            Version.staging_until <= utc_clock(),
        )
    )
    return session.scalars(statement.order_by(BlobRef.holder_id).limit(limit)).all()


def end_quarantine(session: Session, catalogue: Catalogue, version_id: int) -> bool:
    """Let go of stored bytes whose quarantine is over; False when it is not."""
    locked = lock_version(session, version_id)
    version = locked.the_version()
    is_over = version.staging_until is not None and version.staging_until <= locked.now
    if version.state != VersionState.BLOCKED or not is_over:
        return False
    version.staging_until = None
    drop_reference(session, catalogue, locked.blob_of(version), HolderKind.QUARANTINE, version.id)
    return True


@dataclass(frozen=True, slots=True)
class UpTo:
    """The versions of a key that a deletion is of: all, or those up to an id or a generation."""

    version_id: int | None = None
    generation: int | None = None

    @property
    def is_all(self) -> bool:
        """Tell whether it is of what is there now."""
        return self.version_id is None and self.generation is None

    def has(self, version: Version) -> bool:
        """Tell whether it is of this version."""
        return (self.version_id is None or version.id <= self.version_id) and (
            self.generation is None or version.generation <= self.generation
        )

    def where(self) -> list[sa.ColumnElement[bool]]:
        """Return the conditions on versions that say the same."""
        conditions: list[sa.ColumnElement[bool]] = []
        if self.version_id is not None:
            conditions.append(Version.id <= self.version_id)
        if self.generation is not None:
            conditions.append(Version.generation <= self.generation)
        return conditions


#: What is there now.
ALL = UpTo()


def note_deletion(session: Session, object_id: int, up_to: UpTo = ALL) -> None:
    """Let nothing that is blocked under a locked key be released any more: the key was deleted.

    What was put and blocked after an earlier moment, which the deletion is of, is not meant.
    Written down, not told from generations: copies and uploads take those as well, and some fail.
    """
    if not is_quarantined(session, object_id, up_to):
        return
    session.execute(
        sa.update(Version)
        .where(
            Version.object_id == object_id,
            Version.state == VersionState.BLOCKED,
            *up_to.where(),
        )
        .values(error_code=_DELETED_SINCE)
        .execution_options(synchronize_session=False)
    )


def is_quarantined(session: Session, object_id: int, up_to: UpTo = ALL) -> bool:
    """Tell whether a key has blocked content, among these versions, that could be released."""
    return (
        session.scalar(
            sa.select(
                sa.exists().where(
                    Version.object_id == object_id,
                    Version.state == VersionState.BLOCKED,
                    sa.or_(Version.staging_key.is_not(None), _HELD),
                    *up_to.where(),
                )
            )
        )
        is True
    )


def _locked(session: Session, review_id: int, tenant_id: str | None) -> tuple[LockedKey, Review]:
    found = session.get(Review, review_id)
    if found is None or (tenant_id is not None and found.tenant_id != tenant_id):
        raise NotFoundError("there is no such review", code="review_not_found")
    try:
        share_bucket(session, found.bucket_id)
    except NotFoundError as error:
        raise ConflictError("the bucket is gone", code="bucket_gone") from error
    locked = lock_version(session, found.version_id)
    review, version = lock_review(session, review_id), locked.the_version()
    if review.state != ReviewState.REJECTED or version.state != VersionState.BLOCKED:
        raise ConflictError(
            f"the review is {review.state}, its version {version.state}",
            code="review_not_rejected",
            review_id=review_id,
        )
    is_over = version.staging_until is not None and version.staging_until <= locked.now
    if is_over or (version.staging_key is None and not _is_held(session, locked, version)):
        raise ConflictError("the bytes are gone", code="bytes_gone", review_id=review_id)
    return locked, review


def _is_held(session: Session, locked: LockedKey, version: Version) -> bool:
    """Tell whether bytes that were stored before are still there for the quarantine."""
    if locked.blob_of(version).state != BlobState.LIVE:
        return False
    return session.scalar(sa.select(_HELD).where(Version.id == version.id)) is True


def _store_again(session: Session, catalogue: Catalogue, locked: LockedKey) -> None:
    """Make the blocked version the stored and current one that it was before."""
    version = locked.the_version()
    blob = locked.blob_of(version)
    version.state = VersionState.PENDING
    version.ended_at = version.staging_until = None
    session.flush()
    make_current(session, catalogue, locked)
    drop_reference(session, catalogue, blob, HolderKind.QUARANTINE, version.id)
