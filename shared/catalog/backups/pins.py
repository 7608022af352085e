"""Letting the pins of runs go that are over, page by page."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.runs import lock_run
from shared.catalog.blobs import drop_reference
from shared.catalog.context import Catalogue
from shared.catalog.locking import lock_blobs
from shared.catalog.models import (
    BackupItem,
    BackupItemState,
    BackupRun,
    BackupRunState,
    BlobRef,
    HolderKind,
    utc_clock,
    utc_now,
)

#: Blobs that one transaction locks.
PAGE_PINS = 100
_OVER = (BackupRunState.FAILED, BackupRunState.CANCELLED)


def overdue_runs(session: Session) -> Sequence[int]:
    """Return open runs that have held their pins for too long."""
    return session.scalars(
        sa.select(BackupRun.id)
        .where(BackupRun.state == BackupRunState.OPEN, BackupRun.pins_until <= utc_now())
        .order_by(BackupRun.id)
    ).all()


def runs_with_pins(session: Session) -> Sequence[int]:
    """Return the runs that are over and may still pin contents."""
    return session.scalars(
        sa.select(BackupRun.id)
        .where(BackupRun.state.in_(_OVER), BackupRun.pins_until.is_not(None))
        .order_by(BackupRun.id)
    ).all()


def release_page(session: Session, catalogue: Catalogue, run_id: int) -> bool:
    """Let a page of a run's pins go, with their items and tasks; tells whether more are left.

    A run without any left is marked, so that it is not asked again.
    """
    blob_ids = session.scalars(
        sa.select(BlobRef.blob_id)
        .where(BlobRef.holder_kind == HolderKind.BACKUP, BlobRef.holder_id == run_id)
        .order_by(BlobRef.blob_id)
        .limit(PAGE_PINS)
    ).all()
    blobs = lock_blobs(session, blob_ids)
    task_ids = _cancel_items(session, run_id, blob_ids)
    run = lock_run(session, run_id)
    if run is None or run.state not in _OVER:
        return False
    for blob in blobs.values():
        drop_reference(session, catalogue, blob, HolderKind.BACKUP, run_id)
    if not blob_ids:
        run.pins_until = None
    session.flush()
    if task_ids:
        catalogue.tasks.supersede(session, task_ids)
    return bool(blob_ids)


def _cancel_items(session: Session, run_id: int, blob_ids: Sequence[int]) -> list[int]:
    items = session.scalars(
        sa.select(BackupItem)
        .where(BackupItem.run_id == run_id, BackupItem.blob_id.in_(blob_ids))
        .order_by(BackupItem.id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).all()
    task_ids = []
    for item in items:
        if item.state == BackupItemState.OPEN:
            item.state, item.ended_at = BackupItemState.CANCELLED, utc_clock()
            if item.task_id is not None:
                task_ids.append(item.task_id)
    session.flush()
    return sorted(task_ids)
