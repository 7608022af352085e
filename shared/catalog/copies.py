"""Copies and moves within a tenant: a new version that refers to the same content, no bytes.

Both keys are locked together. Where the content is on no channel of the target's bucket, a row and
a task bring it there first, and the commit comes then (`shared.catalog.object_copies`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.blobs import add_reference, has_stored_location
from shared.catalog.conditions import UNCONDITIONAL, Conditions
from shared.catalog.context import Catalogue
from shared.catalog.deletes import end_stored, take_generation
from shared.catalog.expiries import own_times
from shared.catalog.holds import NotStoredYet, refuse_held
from shared.catalog.lifecycle import UNTIMED, Lifetime
from shared.catalog.limits import check_content_type, check_key, check_metadata
from shared.catalog.locking import LockedKey, share_bucket
from shared.catalog.many_keys import find_object, lock_pair
from shared.catalog.models import (
    Blob,
    Bucket,
    Copy,
    CopyState,
    HolderKind,
    Location,
    LocationState,
    Version,
    VersionState,
)
from shared.catalog.notifying.emitting import EventType, emit
from shared.catalog.payloads import REPLICA_OBJECT, CopyObject
from shared.catalog.regions import region_of
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.verdicts import has_passed
from shared.catalog.versions import refresh
from shared.catalog.writing import Facts, PutAnswer, answer_of, write_at_once
from shared.core.errors import ConflictError, InvalidError, NotFoundError, TooLargeError


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOrder:
    """What is to be copied or moved where. What is None is kept as the source has it.

    A time at which the source expires goes along with a move, unless it has another: a copy is
    often made to keep something.
    """

    source_bucket_id: int
    source_key: str
    target_bucket_id: int
    target_key: str
    is_move: bool = False
    content_type: str | None = None
    metadata: Mapping[str, str] | None = None
    lifetime: Lifetime = UNTIMED
    source_conditions: Conditions = UNCONDITIONAL
    target_conditions: Conditions = UNCONDITIONAL


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyBegun:
    """A copy whose bytes must first come to a channel of the target's bucket."""

    copy_id: int
    task_id: int
    source_version_id: int


def copy_object(
    session: Session,
    catalogue: Catalogue,
    order: CopyOrder,
    *,
    admit: Callable[[str], None] = lambda _region: None,
) -> PutAnswer | CopyBegun:
    """Copy or move what a key serves, at once where its bytes are where they should be.

    A move ends the source's version in the same transaction; what is in review there stays. The
    caller has seen to it that both buckets are one tenant's. `admit` is asked with the target's
    region before a task is made, and may refuse. Raises NotFoundError, NotStoredYet for a source
    that its upload has not stored yet, PreconditionError, InvalidError, TooLargeError,
    ConflictError (`object_held`, `content_not_reviewed`, `content_lost`) and SwitchedOffError; then
    nothing is written.
    """
    check_key(order.source_key)
    check_key(order.target_key)
    if order.lifetime.is_asked_for:
        catalogue.need("delete")
    bucket = _share_buckets(session, order)
    source_id = find_object(session, order.source_bucket_id, order.source_key)
    if source_id is None:
        raise _no_source()
    source, target = lock_pair(
        session, source_id=source_id, target=(order.target_bucket_id, order.target_key)
    )
    version = None if source is None else source.served
    if source is None or version is None:
        raise _no_source()
    _judge(session, bucket, order, source, target, version)
    blob = source.blob_of(version)
    facts = _facts(session, order, version)
    # Within a bucket its bytes are where they were, whatever channels it names by now.
    is_within = order.source_bucket_id == order.target_bucket_id
    if not (is_within or is_placed(session, blob, bucket)):
        catalogue.need("replica")
        admit(region_of(session, bucket, "replica"))
        return _begin(session, catalogue, bucket, order, version, blob, target, facts)
    return write_copy(
        session,
        catalogue,
        bucket,
        target,
        version=version,
        blob=blob,
        facts=facts,
        moved_from=source if order.is_move else None,
    )


def write_copy(
    session: Session,
    catalogue: Catalogue,
    bucket: Bucket,
    target: LockedKey,
    *,
    version: Version,
    blob: Blob,
    facts: Facts,
    moved_from: LockedKey | None = None,
    is_now: bool = True,
) -> PutAnswer:
    """Make the target's new version, and end the source's when it is a move; all is locked.

    `is_now` False: it was asked for earlier, and ends no later work on the source's key.
    """
    target.blobs[blob.id] = target.winner = blob
    written, superseded = write_at_once(session, catalogue, bucket, target, facts)
    if moved_from is not None:
        # After the new reference: the content is never without one.
        take_generation(session, moved_from, is_now=is_now)
        end_stored(session, catalogue, moved_from, version)
        refresh(session, moved_from)
        emit(session, catalogue, version, EventType.DELETED)
    if superseded:
        catalogue.tasks.supersede(session, superseded)
    return answer_of(written, target, instant=True)


def is_placed(session: Session, blob: Blob, bucket: Bucket) -> bool:
    """Tell whether a stored copy of the content is on one of the bucket's channels."""
    channels = session.scalars(
        sa.select(Location.channel).where(
            Location.blob_id == blob.id, Location.state == LocationState.STORED
        )
    )
    return not set(bucket.channels).isdisjoint(channels)


def refuse_lost(session: Session, version: Version) -> None:
    """Raise ConflictError when every copy of a stored version is known to be lost.

    Another name for it would pass for a second copy; it is brought back for the first one.
    """
    if not has_stored_location(session, version.blob_id):
        raise ConflictError(
            "the source's content is lost and waits for its restore: send its bytes with a PUT",
            code="content_lost",
        )


def refuse_unreviewed(session: Session, bucket: Bucket, *, sha256: str, content_type: str) -> None:
    """Raise ConflictError unless the bucket would take this content without a review."""
    if bucket.review_policy is None:
        return
    policy = ReviewPolicy.model_validate(bucket.review_policy)
    if not has_passed(
        session,
        tenant_id=bucket.tenant_id,
        sha256=sha256,
        policy=policy,
        content_type=content_type,
    ):
        raise ConflictError(
            "the target's bucket reviews its content, and this one has not passed there: "
            "send its bytes with a PUT",
            code="content_not_reviewed",
        )


def _share_buckets(session: Session, order: CopyOrder) -> Bucket:
    """Share both buckets' locks, ascending, and return the target's."""
    ids = sorted({order.source_bucket_id, order.target_bucket_id})
    return {one: share_bucket(session, one) for one in ids}[order.target_bucket_id]


def _judge(
    session: Session,
    bucket: Bucket,
    order: CopyOrder,
    source: LockedKey,
    target: LockedKey,
    version: Version,
) -> None:
    order.source_conditions.judge(version.etag)
    if version.state != VersionState.STORED:
        raise NotStoredYet(
            "the source is not stored yet",
            code="source_not_stored",
            state=str(version.state),
            task_id=version.task_id,
        )
    refuse_lost(session, version)
    there = target.served
    order.target_conditions.judge(None if there is None else there.etag)
    if source is target and order.is_move:
        raise InvalidError("source and target are the same", code="same_key")
    if source is target and order.metadata is None and order.content_type is None:
        raise InvalidError("a copy onto itself must change something", code="same_key")
    if order.is_move:
        refuse_held(session, source)
    if bucket.max_object_bytes is not None and version.size_bytes > bucket.max_object_bytes:
        raise TooLargeError(
            f"objects of this bucket have at most {bucket.max_object_bytes} bytes",
            size=version.size_bytes,
            max_object_bytes=bucket.max_object_bytes,
        )
    refuse_unreviewed(
        session,
        bucket,
        sha256=version.sha256,
        content_type=order.content_type or version.content_type,
    )


def _facts(session: Session, order: CopyOrder, version: Version) -> Facts:
    kept = version.user_metadata if order.metadata is None else check_metadata(order.metadata)
    lifetime = order.lifetime
    if order.is_move and lifetime == UNTIMED:
        lifetime = Lifetime(at=own_times(session, [version.id]).get(version.id), is_kept=True)
    return facts_of(
        version,
        content_type=check_content_type(order.content_type or version.content_type),
        metadata=dict(kept),
        lifetime=lifetime,
    )


def facts_of(
    version: Version, *, content_type: str, metadata: dict[str, str], lifetime: Lifetime
) -> Facts:
    """Return what a copy of a version is made of."""
    return Facts(
        size=version.size_bytes,
        sha256=version.sha256,
        etag=version.etag,
        content_type=content_type,
        sniffed_type=version.sniffed_type,
        metadata=metadata,
        staging_key=None,
        lifetime=lifetime,
    )


def _begin(
    session: Session,
    catalogue: Catalogue,
    bucket: Bucket,
    order: CopyOrder,
    version: Version,
    blob: Blob,
    target: LockedKey,
    facts: Facts,
) -> CopyBegun:
    """Pin the content, take the target's next generation, and let a task bring the bytes."""
    target.row.generation += 1
    copy = Copy(
        tenant_id=bucket.tenant_id,
        source_version_id=version.id,
        blob_id=blob.id,
        target_bucket_id=bucket.id,
        target_object_id=target.row.id,
        target_key=order.target_key,
        generation=target.row.generation,
        is_move=int(order.is_move),
        state=CopyState.PENDING,
        content_type=facts.content_type,
        user_metadata=facts.metadata,
        expires_at=facts.lifetime.end(target.now),
        created_at=target.now,
    )
    session.add(copy)
    session.flush()
    add_reference(session, blob, HolderKind.COPY, copy.id)
    enqueued = catalogue.tasks.enqueue(
        session,
        REPLICA_OBJECT,
        CopyObject(copy_id=copy.id),
        tenant_id=bucket.tenant_id,
        region=region_of(session, bucket, "replica"),
    )
    copy.task_id = enqueued.id
    session.flush()
    return CopyBegun(copy_id=copy.id, task_id=enqueued.id, source_version_id=version.id)


def _no_source() -> NotFoundError:
    return NotFoundError("there is no such object", code="object_not_found")
