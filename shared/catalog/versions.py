"""The moves of a version that both the request side and the workers make, under the key's locks.

Each leaves the object row right: what is current, what is served, and the listing's copies.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.following import follow
from shared.catalog.blobs import add_reference, dispose_staged, drop_reference
from shared.catalog.context import Catalogue
from shared.catalog.limits import upload_attempts
from shared.catalog.locking import LockedKey
from shared.catalog.models import (
    SERVED,
    BlobState,
    Bucket,
    HolderKind,
    Review,
    Version,
    VersionState,
    utc_now,
)
from shared.catalog.notifying.emitting import EventType, emit
from shared.catalog.payloads import UPLOAD_STORE, StoreUpload
from shared.catalog.regions import region_of
from shared.catalog.replicas.planning import plan_bucket
from shared.catalog.rereviews.latecomers import follow_change
from shared.catalog.supersede import supersede_rows


def is_newest_served(locked: LockedKey, version: Version) -> bool:
    """Tell whether no newer generation is pending, failed or stored."""
    return not any(
        other.generation > version.generation and other.state in SERVED
        for other in locked.versions.values()
    )


def may_store(locked: LockedKey) -> bool:
    """Tell whether the named version may become the stored one.

    It is still pending and no newer generation is pending, failed or stored. One in review or
    rejected does not count: it may never be readable.
    """
    version = locked.the_version()
    return version.state == VersionState.PENDING and is_newest_served(locked, version)


def make_current(session: Session, catalogue: Catalogue, locked: LockedKey) -> None:
    """Make the named pending version the stored and current one.

    Its blob becomes live, or the version moves to the `winner` of its content and its own blob is
    given up. The reference is inserted before the previous version loses its own, and the copies
    that the bucket asks for are planned. Older unfinished
    versions become superseded; their tasks find that out by themselves. Its staging file is among
    `locked.released` then. The caller has asked `may_store`, and has set the location to stored
    where there is one.
    """
    version = locked.the_version()
    own = locked.blob_of(version)
    target = own if locked.winner is None else locked.winner
    if target is not own:
        dispose_staged(session, catalogue, own)
        version.blob_id = target.id
    elif own.state == BlobState.STAGED:
        own.state = BlobState.LIVE
        own.stored_at = locked.now
    previous = locked.stored
    if version.staging_key is not None:
        locked.released.append(version.staging_key)
    version.staging_key = None
    version.state = VersionState.STORED
    version.stored_at = locked.now
    version.error_code = None
    session.flush()
    add_reference(session, target, HolderKind.VERSION, version.id)
    bucket = session.get(Bucket, version.bucket_id)
    plan_bucket(session, catalogue, bucket, target)
    follow(session, catalogue, bucket, target)
    if previous is not None:
        previous.state = VersionState.REPLACED
        previous.ended_at = locked.now
        drop_reference(
            session, catalogue, locked.blob_of(previous), HolderKind.VERSION, previous.id
        )
    supersede_rows(session, catalogue, locked, below_generation=version.generation)
    refresh(session, locked)
    emit(session, catalogue, version, EventType.STORED)


def promote(
    session: Session,
    catalogue: Catalogue,
    locked: LockedKey,
    *,
    trace_parent: str | None = None,
    end_tasks: bool = True,
) -> int:
    """Let a version that passed its review become pending, and enqueue its upload.

    Where the bucket's rules have changed meanwhile it will be reviewed again; the caller shares the
    bucket's lock. The key's older unfinished work is superseded, its tasks as well: the caller
    locked with `lock_version(..., task_id=...)`. An `on_end` hook, which may end no other task,
    says `end_tasks=False`; those tasks then end by themselves. Returns the upload task's id.
    """
    version = locked.the_version()
    version.state = VersionState.PENDING
    version.ended_at = None
    version.error_code = None
    session.flush()
    superseded = supersede_rows(session, catalogue, locked, below_generation=version.generation)
    bucket = session.get(Bucket, version.bucket_id)
    version.task_id = enqueue_upload(
        session, catalogue, version, bucket=bucket, trace_parent=trace_parent
    )
    refresh(session, locked)
    judged_by = session.scalar(
        sa.select(Review.policy_version).where(Review.version_id == version.id, Review.run_id == 0)
    )
    follow_change(session, catalogue, version, judged_by=judged_by)
    if end_tasks and superseded:
        catalogue.tasks.supersede(session, superseded)
    return version.task_id


def reject(
    session: Session,
    catalogue: Catalogue,
    locked: LockedKey,
    *,
    code: str,
    quarantine_seconds: float,
    is_final: bool = True,
) -> None:
    """Block a version that did not pass; its staging bytes stay for the quarantine.

    What only a failure of the reviewers decided is not final: its blob is kept, so that the review
    can be retried.
    """
    version = locked.the_version()
    version.state = VersionState.BLOCKED
    version.ended_at = locked.now
    version.staging_until = utc_now(quarantine_seconds)
    version.error_code = code
    session.flush()
    if is_final:
        dispose_staged(session, catalogue, locked.blob_of(version))
    refresh(session, locked)
    emit(session, catalogue, version, EventType.BLOCKED)


def enqueue_upload(
    session: Session,
    catalogue: Catalogue,
    version: Version,
    *,
    bucket: Bucket | None,
    trace_parent: str | None,
) -> int:
    """Enqueue the upload of a pending version in its bucket's region; returns the task's id."""
    enqueued = catalogue.tasks.enqueue(
        session,
        UPLOAD_STORE,
        StoreUpload(version_id=version.id, blob_id=version.blob_id),
        tenant_id=version.tenant_id,
        region="" if bucket is None else region_of(session, bucket, "upload"),
        max_attempts=upload_attempts(1 if bucket is None else len(bucket.channels)),
        trace_parent=trace_parent,
    )
    return enqueued.id


def refresh(session: Session, locked: LockedKey) -> None:
    """Recompute what the object row says of its versions. Nothing else writes these columns."""
    row, served, stored = locked.row, locked.served, locked.stored
    row.current_version_id = None if stored is None else stored.id
    row.served_version_id = None if served is None else served.id
    row.is_listed = 0 if served is None else 1
    row.size_bytes = None if served is None else served.size_bytes
    row.etag = None if served is None else served.etag
    row.content_type = None if served is None else served.content_type
    row.modified_at = None if served is None else served.created_at
    session.flush()
