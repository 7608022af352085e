"""A PUT's commit: the new version, what it supersedes and its task, in one transaction.

The bytes are safe in staging before this begins. Every function may be repeated in a fresh
transaction: until its commit it has left nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.blobs import has_stored_location
from shared.catalog.conditions import UNCONDITIONAL, Conditions
from shared.catalog.context import Catalogue
from shared.catalog.lifecycle import UNTIMED, Lifetime
from shared.catalog.limits import check_content_type, check_key, check_metadata, check_sha256
from shared.catalog.locking import Content, LockedKey, share_bucket
from shared.catalog.models import (
    Blob,
    BlobState,
    Bucket,
    Review,
    ReviewState,
    Version,
    VersionState,
)
from shared.catalog.payloads import REVIEW_CHECK, CheckReview
from shared.catalog.possession import content_unknown, demand_possession
from shared.catalog.regions import region_of
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.supersede import supersede_rows
from shared.catalog.turns import judge, lock_made, refuse_overwritten
from shared.catalog.verdicts import has_passed
from shared.catalog.versions import enqueue_upload, refresh
from shared.catalog.writing import (
    Facts,
    LockedPut,
    PutAnswer,
    answer_of,
    insert_version,
    store_at_once,
)
from shared.core.errors import InvalidError, TooLargeError

__all__ = [
    "LockedPut",
    "PutAnswer",
    "Staged",
    "commit_put",
    "instant_upload",
    "lock_put",
    "write_put",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A body that is durable in staging. `etag` is its MD5, `sha256` and `etag` in hexadecimal."""

    key: str
    size: int
    sha256: str
    etag: str
    content_type: str
    sniffed_type: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    lifetime: Lifetime = UNTIMED


def commit_put(
    session: Session,
    catalogue: Catalogue,
    bucket_id: int,
    key: str,
    staged: Staged,
    *,
    conditions: Conditions = UNCONDITIONAL,
    trace_parent: str | None = None,
) -> PutAnswer:
    """Write a new version of a key from staged bytes, and the task that reviews or stores it.

    Content that the tenant has stored already becomes current at once (`instant`), in a reviewed
    bucket only with a passing verdict. Older unfinished work on the key is superseded, in a
    reviewed bucket only once this version has passed. Raises PreconditionError, NotFoundError
    (`bucket_not_found`), TooLargeError, InvalidError and SwitchedOffError; then nothing is written.
    """
    if staged.lifetime.is_asked_for:
        catalogue.need("delete")
    put = lock_put(session, bucket_id, key, staged, conditions=conditions)
    return write_put(session, catalogue, put, trace_parent=trace_parent)


def lock_put(
    session: Session,
    bucket_id: int,
    key: str,
    staged: Staged,
    *,
    conditions: Conditions = UNCONDITIONAL,
    generation: int | None = None,
) -> LockedPut:
    """Take the locks of `commit_put` and judge whether it may go on; `write_put` does the rest.

    For a worker, whose own task row is locked in between: it locks that one together with
    `LockedPut.older_tasks`, by ascending id. `generation` is what `take_turn` gave when the write
    was acknowledged. Raises SupersededError when a later write or DELETE has won since.
    """
    facts = Facts(
        size=staged.size,
        sha256=check_sha256(staged.sha256),
        etag=staged.etag,
        content_type=check_content_type(staged.content_type),
        sniffed_type=staged.sniffed_type,
        metadata=check_metadata(staged.metadata),
        staging_key=staged.key,
        lifetime=staged.lifetime,
        generation=generation,
    )
    bucket, locked = _open(session, bucket_id, key, facts, conditions)
    return LockedPut(bucket, locked, facts)


def write_put(
    session: Session,
    catalogue: Catalogue,
    put: LockedPut,
    *,
    trace_parent: str | None = None,
) -> PutAnswer:
    """Write the version whose key `lock_put` has locked in this transaction."""
    bucket, locked, facts = put.bucket, put.locked, put.facts
    policy = _policy(bucket)
    if policy is not None:
        catalogue.need("review")
    if _is_known(session, locked) and _may_skip_review(session, bucket, policy, facts):
        return store_at_once(session, catalogue, bucket, locked, facts)
    blob = Blob(
        tenant_id=bucket.tenant_id,
        sha256=facts.sha256,
        size_bytes=facts.size,
        state=BlobState.STAGED,
        generation=1,
        created_at=locked.now,
    )
    session.add(blob)
    session.flush()
    locked.blobs[blob.id] = blob
    if policy is None:
        version = insert_version(session, bucket, locked, facts, blob, VersionState.PENDING)
        superseded = supersede_rows(session, catalogue, locked, below_generation=version.generation)
        version.task_id = enqueue_upload(
            session, catalogue, version, bucket=bucket, trace_parent=trace_parent
        )
    else:
        version = insert_version(session, bucket, locked, facts, blob, VersionState.REVIEWING)
        superseded = []
        version.task_id = _enqueue_review(
            session, catalogue, bucket, policy, version, trace_parent=trace_parent
        )
    refresh(session, locked)
    if superseded:
        catalogue.tasks.supersede(session, superseded)
    return answer_of(version, locked, instant=False)


def instant_upload(
    session: Session,
    catalogue: Catalogue,
    bucket_id: int,
    key: str,
    *,
    sha256: str,
    size: int,
    content_type: str | None = None,
    metadata: Mapping[str, str] | None = None,
    conditions: Conditions = UNCONDITIONAL,
    lifetime: Lifetime | None = None,
    is_proven: bool = False,
) -> PutAnswer:
    """Write a new version of a key from content that the tenant has stored, without its bytes.

    `is_proven`: the client has shown that it really has it, which some buckets ask for. Raises
    ForbiddenError (`instant_upload_off`, `possession_unproven`) as the bucket's rule wants it.
    Raises NotFoundError (`content_unknown`) when the bytes must be sent: the content is not
    stored, or a reviewed bucket has no passing verdict on it. SwitchedOffError for a lifetime where
    nobody deletes.
    """
    if lifetime is not None and lifetime.is_asked_for:
        catalogue.need("delete")
    if size < 0:
        raise InvalidError("a size is not negative", code="size_invalid")
    facts = Facts(
        size=size,
        sha256=check_sha256(sha256),
        etag="",
        content_type=check_content_type(content_type),
        sniffed_type=None,
        metadata=check_metadata(metadata or {}),
        staging_key=None,
    )
    bucket, locked = _open(session, bucket_id, key, facts, conditions)
    demand_possession(bucket.instant_upload, is_proven=is_proven)
    known = _known_version(session, locked) if _is_known(session, locked) else None
    if known is None or not _may_skip_review(session, bucket, _policy(bucket), facts):
        raise content_unknown()
    facts = Facts(
        size=size,
        sha256=facts.sha256,
        etag=known.etag,
        content_type=facts.content_type,
        sniffed_type=known.sniffed_type,
        metadata=facts.metadata,
        staging_key=None,
        lifetime=lifetime or UNTIMED,
    )
    return store_at_once(session, catalogue, bucket, locked, facts)


def _open(
    session: Session, bucket_id: int, key: str, facts: Facts, conditions: Conditions
) -> tuple[Bucket, LockedKey]:
    """Lock what a write touches and judge whether it may go on."""
    check_key(key)
    bucket = share_bucket(session, bucket_id)
    if bucket.max_object_bytes is not None and facts.size > bucket.max_object_bytes:
        raise TooLargeError(
            f"objects of this bucket have at most {bucket.max_object_bytes} bytes",
            size=facts.size,
            max_object_bytes=bucket.max_object_bytes,
        )
    content = Content(bucket.tenant_id, facts.sha256, facts.size)
    locked = lock_made(session, bucket, key, content)
    if facts.generation is not None:
        refuse_overwritten(session, locked, facts.generation)
    judge(conditions, locked)
    return bucket, locked


def _policy(bucket: Bucket) -> ReviewPolicy | None:
    if bucket.review_policy is None:
        return None
    return ReviewPolicy.model_validate(bucket.review_policy)


def _is_known(session: Session, locked: LockedKey) -> bool:
    return locked.winner is not None and has_stored_location(session, locked.winner.id)


def _may_skip_review(
    session: Session, bucket: Bucket, policy: ReviewPolicy | None, facts: Facts
) -> bool:
    return policy is None or has_passed(
        session,
        tenant_id=bucket.tenant_id,
        sha256=facts.sha256,
        policy=policy,
        content_type=facts.content_type,
    )


def _known_version(session: Session, locked: LockedKey) -> Version | None:
    """Return a version that was stored with the winner's content, for its ETag."""
    if locked.winner is None:
        return None
    return session.scalars(
        sa.select(Version)
        .where(Version.blob_id == locked.winner.id, Version.stored_at.is_not(None))
        .order_by(Version.id)
        .limit(1)
    ).one_or_none()


def _enqueue_review(
    session: Session,
    catalogue: Catalogue,
    bucket: Bucket,
    policy: ReviewPolicy,
    version: Version,
    *,
    trace_parent: str | None,
) -> int:
    review = Review(
        tenant_id=bucket.tenant_id,
        bucket_id=bucket.id,
        version_id=version.id,
        blob_id=version.blob_id,
        sha256=version.sha256,
        policy=policy.model_dump(mode="json"),
        policy_version=policy.version,
        state=ReviewState.OPEN,
        created_at=version.created_at,
    )
    session.add(review)
    session.flush()
    enqueued = catalogue.tasks.enqueue(
        session,
        REVIEW_CHECK,
        CheckReview(version_id=version.id, blob_id=version.blob_id, review_id=review.id),
        tenant_id=bucket.tenant_id,
        region=region_of(session, bucket, "review"),
        trace_parent=trace_parent,
    )
    review.task_id = enqueued.id
    return enqueued.id
