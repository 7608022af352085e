"""What goes from a backup target, and when: old runs, then what no complete or open run names.

A content is removed in two steps under its row's lock: seen unneeded, and after the grace, still
unneeded, condemned. Whoever names a content takes the same lock.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backup_policy import DEFAULT_GRACE_SECONDS
from shared.catalog.backups.contents import NEEDING, READABLE, is_needed, lock_content_ids
from shared.catalog.backups.counts import GRACE
from shared.catalog.backups.runs import lock_run, policy_of
from shared.catalog.models import (
    BackupContent,
    BackupContentState,
    BackupItem,
    BackupRun,
    BackupRunState,
    Bucket,
    Restore,
    RestoreState,
    by_index,
    utc_clock,
)
from shared.core.errors import ConflictError

#: What is held until nothing names it.
HELD = (BackupContentState.STORED, BackupContentState.SPARE, BackupContentState.DAMAGED)
_OVER = (BackupRunState.PRUNED, BackupRunState.FAILED, BackupRunState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Looked:
    """What one page of contents came to; `due_in_seconds` until the first unneeded one may go."""

    last_id: int
    condemned: int
    due_in_seconds: float | None


def complete_runs(session: Session, bucket_id: int, target: str) -> Sequence[BackupRun]:
    """Return the complete runs of a bucket's target, the newest snapshot first."""
    return session.scalars(
        sa.select(BackupRun)
        .where(
            BackupRun.bucket_id == bucket_id,
            BackupRun.target == target,
            BackupRun.state == BackupRunState.COMPLETE,
        )
        .order_by(BackupRun.snapshot_at.desc(), BackupRun.id.desc())
    ).all()


def whole_runs(session: Session, runs: Sequence[BackupRun]) -> set[int]:
    """Return those that lack no content and whose manifest is believed to be there."""
    readable = set(
        session.scalars(
            sa.select(BackupContent.id).where(
                BackupContent.id.in_(
                    sorted(run.manifest_id for run in runs if run.manifest_id is not None)
                ),
                BackupContent.state.in_(READABLE),
            )
        )
    )
    return {
        run.id
        for run in runs
        if run.manifest_id in readable
        and not any((run.counts or {}).get(name) for name in ("lost", "failed"))
    }


def prune_run(session: Session, run_id: int) -> None:
    """Drop a complete run; what only it named may go after the grace.

    Raises ConflictError: `backup_not_complete`, `backup_in_use` while an open restore reads it.
    """
    run = lock_run(session, run_id)
    if run is None or run.state == BackupRunState.PRUNED:
        return
    if run.state != BackupRunState.COMPLETE:
        raise ConflictError(f"the run is {run.state}", code="backup_not_complete", state=run.state)
    if is_read(session, run_id):
        raise ConflictError("an open restore reads the backup", code="backup_in_use")
    run.state, run.ended_at = BackupRunState.PRUNED, utc_clock()
    session.flush()


def is_read(session: Session, run_id: int) -> bool:
    """Tell whether an open restore reads a run; the run's lock guards the answer."""
    reading = sa.exists().where(Restore.state == RestoreState.OPEN, Restore.run_id == run_id)
    return session.scalar(sa.select(reading)) is True


def forget_items(session: Session, bucket_id: int, target: str, *, limit: int) -> int:
    """Delete a page of ended items of runs that are over; returns how many."""
    ids = session.scalars(
        sa.select(BackupItem.id)
        .join(BackupRun, BackupRun.id == BackupItem.run_id)
        .where(
            BackupRun.bucket_id == bucket_id,
            BackupRun.target == target,
            BackupRun.state.in_(_OVER),
            # Its pins are released first: they are found by these rows.
            BackupRun.pins_until.is_(None),
        )
        .limit(limit)
    ).all()
    if ids:
        session.execute(
            sa.delete(BackupItem)
            .where(BackupItem.id.in_(ids))
            .execution_options(synchronize_session=False)
        )
    return len(ids)


def grace_seconds(session: Session, tenant_id: str, target: str, *, bucket_id: int) -> float:
    """Return how long a tenant's unneeded contents stay on a target: its buckets' longest grace.

    Of a bucket whose rule was taken back, or that is gone (`bucket_id`, whose target is pruned), it
    is the grace that stood when its last run began.
    """
    longest, without = 0.0, {bucket_id}
    for bucket in session.scalars(sa.select(Bucket).where(Bucket.tenant_id == tenant_id)):
        policy = policy_of(bucket)
        if policy is None or policy.target != target:
            without.add(bucket.id)
            continue
        without.discard(bucket.id)
        longest = max(longest, policy.longest_grace_seconds)
    newest = session.scalars(
        sa.select(sa.func.max(BackupRun.id))
        .where(BackupRun.bucket_id.in_(sorted(without)), BackupRun.target == target)
        .group_by(BackupRun.bucket_id)
    ).all()
    stood = session.scalars(sa.select(BackupRun.counts).where(BackupRun.id.in_(newest)))
    graces = [(counts or {}).get(GRACE, DEFAULT_GRACE_SECONDS) for counts in stood]
    return max([longest, *map(float, graces)])


def page_of_held(
    session: Session, target: str, tenant_id: str, after: int, *, limit: int
) -> Sequence[int]:
    """Return contents that are held on a target, those with an id above `after`."""
    found: list[int] = []
    for state in HELD:
        # One by one: over several states the ids of an index are in no order.
        statement = (
            sa.select(BackupContent.id)
            .where(
                BackupContent.target == target,
                BackupContent.tenant_id == tenant_id,
                BackupContent.state == state,
                BackupContent.id > after,
            )
            .order_by(BackupContent.id)
            .limit(limit)
        )
        found += session.scalars(by_index(statement, BackupContent, "ix_backup_contents_tenant"))
    return sorted(found)[:limit]


def unneeded(session: Session, ids: Sequence[int]) -> list[int]:
    """Return those that no complete or open run names now. Nothing is locked."""
    named = session.scalars(
        sa.select(BackupItem.content_id)
        .join(BackupRun, BackupRun.id == BackupItem.run_id)
        .where(BackupItem.content_id.in_(ids), BackupRun.state.in_(NEEDING))
        .distinct()
    )
    manifests = session.scalars(
        sa.select(BackupContent.id)
        .join(BackupRun, BackupRun.id == BackupContent.run_id)
        .where(
            BackupContent.id.in_(ids),
            BackupRun.manifest_id == BackupContent.id,
            BackupRun.state == BackupRunState.COMPLETE,
        )
    )
    needed = {*named, *manifests}
    return [content_id for content_id in ids if content_id not in needed]


def condemn_unneeded(session: Session, ids: Sequence[int], *, grace: float) -> Looked:
    """Look at contents once more under their locks, and condemn those whose grace is over."""
    now = session.scalar(sa.select(utc_clock()))
    if now is None:
        raise AssertionError("the clock tells the time")
    condemned, due = 0, None
    for content in lock_content_ids(session, ids).values():
        if content.state not in HELD:
            continue
        if is_needed(session, content):
            content.unneeded_at = None
            continue
        if content.unneeded_at is None:
            content.unneeded_at = now
        left = (content.unneeded_at + dt.timedelta(seconds=grace) - now).total_seconds()
        if left > 0:
            due = left if due is None else min(due, left)
            continue
        content.state = BackupContentState.CONDEMNED
        content.tries, content.next_try_at = 0, None
        condemned += 1
    session.flush()
    return Looked(max(ids, default=0), condemned, due)
