"""What a review has blocked, while its bytes are kept: released by a person, or destroyed early.

Nothing else reads these bytes. When their time is over, the clean-up of staging takes them.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.blobs import dispose_staged
from shared.catalog.context import Catalogue
from shared.catalog.locking import LockedKey, lock_version, share_bucket
from shared.catalog.models import (
    Blob,
    BlobState,
    Review,
    ReviewState,
    Version,
    VersionState,
)
from shared.catalog.review_policy import Decision
from shared.catalog.rulings import REASON_CHARACTERS, Ruling, lock_review, write_ruling
from shared.catalog.versions import is_newest_served
from shared.core.errors import ConflictError, NotFoundError


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

    It also counts as a verdict on the content. Raises NotFoundError (`review_not_found`) and
    ConflictError: `review_not_rejected`, `bytes_gone`, `bucket_gone`, or `superseded` when the key
    was written or deleted since.
    """
    catalogue.need("upload")
    locked, review = _locked(session, review_id, tenant_id)
    version = locked.the_version()
    if not is_newest_served(locked, version) or _was_deleted_since(session, locked, version):
        raise ConflictError(
            "the key was written or deleted since", code="superseded", review_id=review_id
        )
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
    ruling = Ruling(Decision.PASS, by=by[:128], reason=reason, is_reusable=True)
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
) -> str:
    """End a quarantine now; returns the staging file to be removed after the commit.

    Raises NotFoundError and ConflictError as `release` does. The verdict stands.
    """
    locked, review = _locked(session, review_id, tenant_id)
    version = locked.the_version()
    key = version.staging_key
    assert key is not None
    version.staging_key = version.staging_until = None
    note = f"destroyed by {by}: {reason}".rstrip(": ")
    review.reason = f"{review.reason}; {note}".lstrip("; ")[:REASON_CHARACTERS]
    session.flush()
    dispose_staged(session, catalogue, locked.blob_of(version))
    return key


def is_quarantined(session: Session, object_id: int) -> bool:
    """Tell whether a key has blocked content that could be released."""
    return (
        session.scalar(
            sa.select(
                sa.exists().where(
                    Version.object_id == object_id,
                    Version.state == VersionState.BLOCKED,
                    Version.staging_key.is_not(None),
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
    if version.staging_key is None or is_over:
        raise ConflictError("the bytes are gone", code="bytes_gone", review_id=review_id)
    return locked, review


def _was_deleted_since(session: Session, locked: LockedKey, version: Version) -> bool:
    """Tell whether a DELETE came after it: that takes a generation which no version has."""
    newer = session.scalar(
        sa.select(sa.func.count()).where(
            Version.object_id == version.object_id, Version.generation > version.generation
        )
    )
    return (newer or 0) != locked.row.generation - version.generation
