"""Backup runs: opened once per slot, ended once. A run's row lock guards its state."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shared.catalog.backup_policy import BackupPolicy
from shared.catalog.backups.counts import GRACE
from shared.catalog.backups.snapshot import Cursor
from shared.catalog.context import Catalogue
from shared.catalog.models import (
    BackupItem,
    BackupItemState,
    BackupRun,
    BackupRunState,
    Bucket,
    Version,
    utc_clock,
    utc_now,
)
from shared.catalog.payloads import BACKUP_PRUNE, BACKUP_RUN, PruneBackups, RunBackup
from shared.catalog.regions import region_of
from shared.core.errors import ConflictError, NotFoundError
from shared.core.ids import new_id

#: Seconds for which a run may hold contents back from deletion; then it has failed.
PIN_SECONDS = 24 * 3600.0
#: Code of a run that held its pins for too long.
PINS_EXPIRED = "pins_expired"


def policy_of(bucket: Bucket | None) -> BackupPolicy | None:
    """Return a bucket's rule, None without one."""
    if bucket is None or bucket.backup is None:
        return None
    return BackupPolicy.model_validate(bucket.backup)


def manual_slot() -> str:
    """Return a slot that no other run has."""
    return f"manual:{new_id()}"


def time_slot(now: dt.datetime, interval_seconds: int) -> str:
    """Return the slot that a moment lies in: when it began, in UTC."""
    since = dt.datetime(1970, 1, 1)
    begun = int((now - since).total_seconds()) // interval_seconds * interval_seconds
    return (since + dt.timedelta(seconds=begun)).isoformat(timespec="seconds") + "Z"


def open_run(session: Session, catalogue: Catalogue, bucket_id: int, *, slot: str) -> BackupRun:
    """Open a run of a bucket by its rule, with its task.

    Raises NotFoundError, and ConflictError: `backup_rule_missing`, `backup_open` while another run
    to the same target is, `backup_slot_taken`.
    """
    bucket = session.scalars(
        sa.select(Bucket)
        .where(Bucket.id == bucket_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()
    if bucket is None:
        raise NotFoundError("there is no such bucket", code="bucket_not_found")
    policy = policy_of(bucket)
    if policy is None:
        raise ConflictError("the bucket has no rule for backups", code="backup_rule_missing")
    running = session.scalar(
        sa.select(BackupRun.id).where(
            BackupRun.bucket_id == bucket.id,
            BackupRun.state == BackupRunState.OPEN,
            BackupRun.target == policy.target,
        )
    )
    if running is not None:
        raise ConflictError("another run is open", code="backup_open", run_id=running)
    run = BackupRun(
        tenant_id=bucket.tenant_id,
        bucket_id=bucket.id,
        target=policy.target,
        slot=slot,
        state=BackupRunState.OPEN,
        # In this order: what is stored by then has an id below.
        snapshot_at=session.scalar(sa.select(utc_clock())),
        snapshot_version_id=session.scalar(sa.select(sa.func.max(Version.id))) or 0,
        counts={GRACE: policy.longest_grace_seconds},
        pins_until=utc_now(PIN_SECONDS),
        created_at=utc_clock(),
    )
    try:
        with session.begin_nested():
            session.add(run)
    except IntegrityError as error:
        raise ConflictError("the slot has its run", code="backup_slot_taken") from error
    run.task_id = catalogue.tasks.enqueue(
        session,
        BACKUP_RUN,
        RunBackup(run_id=run.id),
        tenant_id=run.tenant_id,
        region=region_of(session, bucket, "backup"),
        dedupe_key=f"backup:{run.id}",
    ).id
    session.flush()
    session.refresh(run)
    return run


def lock_run(session: Session, run_id: int) -> BackupRun | None:
    """Lock a run and read it anew; None when it is not there."""
    return session.scalars(
        sa.select(BackupRun)
        .where(BackupRun.id == run_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()


def end_run(run: BackupRun, state: BackupRunState, *, code: str | None = None) -> None:
    """End an open run that this transaction has locked. Its pins are released afterwards."""
    run.state, run.error_code, run.ended_at = state, code, utc_clock()


def begin_last_round(session: Session, run_id: int) -> None:
    """Let the enumeration of a locked run whose first round is done begin once more.

    Up to what is the newest version by now: one that was being written at the snapshot could not be
    seen then, and has taken the place of another. `snapshot_at` alone says what is of the snapshot.
    """
    run = session.get(BackupRun, run_id)
    if run is not None and run.state == BackupRunState.OPEN:
        cursor = Cursor.load(run.cursor)
        if cursor.is_done and not cursor.is_last:
            newest = session.scalar(sa.select(sa.func.max(Version.id))) or 0
            run.snapshot_version_id = max(run.snapshot_version_id, newest)
            run.cursor = Cursor(is_last=True).dump()
            session.flush()


def cancel_run(session: Session, catalogue: Catalogue, run: BackupRun) -> BackupRun:
    """Cancel a run: its pins go, what it has copied is there for the next one.

    Cancelling what is cancelled changes nothing. Raises ConflictError (`backup_over`).
    """
    locked = lock_run(session, run.id)
    if locked is None or locked.state == BackupRunState.CANCELLED:
        return run
    if locked.state != BackupRunState.OPEN:
        raise ConflictError(f"the run is {locked.state}", code="backup_over", state=locked.state)
    end_run(locked, BackupRunState.CANCELLED, code="cancelled")
    session.flush()
    if locked.task_id is not None:
        catalogue.tasks.supersede(session, [locked.task_id])
    session.refresh(locked)
    return locked


def fail_overdue(session: Session, catalogue: Catalogue, run_id: int) -> bool:
    """Fail a run that has held its pins for too long; tells whether it did."""
    run = lock_run(session, run_id)
    now = session.scalar(sa.select(utc_clock()))
    if (
        run is None
        or run.state != BackupRunState.OPEN
        or run.pins_until is None
        or now is None
        or run.pins_until > now
    ):
        return False
    end_run(run, BackupRunState.FAILED, code=PINS_EXPIRED)
    session.flush()
    if run.task_id is not None:
        catalogue.tasks.supersede(session, [run.task_id])
    return True


def has_open_items(session: Session, run_id: int) -> bool:
    """Tell whether a content of the run is still to be copied."""
    return (
        session.scalar(
            sa.select(
                sa.exists().where(
                    BackupItem.run_id == run_id, BackupItem.state == BackupItemState.OPEN
                )
            )
        )
        is True
    )


def has_backups(session: Session, bucket_id: int) -> bool:
    """Tell whether a bucket has a run that can be restored from, or may become one."""
    living = (BackupRunState.OPEN, BackupRunState.COMPLETE)
    return (
        session.scalar(
            sa.select(
                sa.exists().where(BackupRun.bucket_id == bucket_id, BackupRun.state.in_(living))
            )
        )
        is True
    )


def enqueue_prune(
    session: Session, catalogue: Catalogue, *, tenant_id: str, bucket_id: int, target: str
) -> None:
    """Enqueue the pruning of a bucket's target, unless it waits or runs already."""
    if not catalogue.serves("backup"):
        return
    bucket = session.get(Bucket, bucket_id)
    catalogue.tasks.enqueue(
        session,
        BACKUP_PRUNE,
        PruneBackups(bucket_id=bucket_id, target=target),
        tenant_id=tenant_id,
        region="" if bucket is None else region_of(session, bucket, "backup"),
        dedupe_key=f"prune:{bucket_id}:{target}",
    )
