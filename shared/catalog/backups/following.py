"""Continuous backups: a content is copied as it becomes live, by the commit that makes it so.

These copies belong to no snapshot and pin nothing: what goes before it is copied was never in a
manifest, and the next run meets everything else.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.contents import stored_contents
from shared.catalog.backups.counts import GRACE
from shared.catalog.backups.enumerating import add_item
from shared.catalog.backups.runs import policy_of
from shared.catalog.context import Catalogue
from shared.catalog.models import (
    BackupItem,
    BackupRun,
    BackupRunState,
    Blob,
    Bucket,
    utc_clock,
)
from shared.catalog.regions import region_of

#: The slot of the run that never ends.
CONTINUOUS = "continuous"


def ensure_following(session: Session, bucket: Bucket) -> None:
    """See that a locked bucket with a continuous rule has the run that its copies belong to."""
    policy = policy_of(bucket)
    if policy is None or policy.mode != "continuous":
        return
    counts = {GRACE: policy.longest_grace_seconds}
    run = _following(session, bucket.id, policy.target)
    if run is not None:
        run.counts = counts
    else:
        session.add(
            BackupRun(
                tenant_id=bucket.tenant_id,
                bucket_id=bucket.id,
                target=policy.target,
                slot=CONTINUOUS,
                state=BackupRunState.FOLLOWING,
                counts=counts,
                created_at=utc_clock(),
            )
        )
    session.flush()


def follow(session: Session, catalogue: Catalogue, bucket: Bucket | None, blob: Blob) -> None:
    """Have a content copied that has just become one of the bucket's; the blob is locked.

    Nothing is made where nobody serves backups, and for what the target holds already.
    """
    if bucket is None or bucket.backup is None or not catalogue.serves("backup"):
        return
    policy = policy_of(bucket)
    if policy is None or policy.mode != "continuous":
        return
    run = _following(session, bucket.id, policy.target)
    held = stored_contents(session, policy.target, blob.tenant_id, [blob.sha256])
    if run is None or (blob.sha256, blob.size_bytes) in held:
        return
    # The blob's lock guards this look.
    known = session.scalar(
        sa.select(sa.exists().where(BackupItem.run_id == run.id, BackupItem.blob_id == blob.id))
    )
    if not known:
        add_item(session, catalogue, run, blob, region=region_of(session, bucket, "backup"))


def _following(session: Session, bucket_id: int, target: str) -> BackupRun | None:
    return session.scalars(
        sa.select(BackupRun).where(
            BackupRun.bucket_id == bucket_id,
            BackupRun.target == target,
            BackupRun.slot == CONTINUOUS,
        )
    ).one_or_none()
