"""Which manifest a restore reads, and the next one when that is damaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.runs import lock_run
from shared.catalog.models import (
    BackupContent,
    BackupContentState,
    BackupRun,
    BackupRunState,
    Restore,
    RestoreState,
)
from shared.catalog.restores.runs import lock_restore
from shared.core.errors import SupersededError

_KEPT = (BackupContentState.STORED, BackupContentState.DAMAGED)


@dataclass(frozen=True, slots=True)
class HeldManifest:
    """A complete run's manifest on its target."""

    run_id: int
    content_id: int
    target: str
    key: str
    size: int
    sha256: str
    is_damaged: bool


def find_manifest(session: Session, run_id: int) -> HeldManifest | None:
    """Return a run's manifest, None when the run is not complete any more.

    It may be damaged: whoever reads it proves it first, also one that was found damaged before.
    """
    row = session.execute(
        sa.select(BackupRun, BackupContent)
        .join(BackupContent, BackupContent.id == BackupRun.manifest_id)
        .where(BackupRun.id == run_id, BackupRun.state == BackupRunState.COMPLETE)
        .execution_options(populate_existing=True)
    ).one_or_none()
    if row is None or row[1].state not in _KEPT:
        return None
    run, content = row
    return HeldManifest(
        run.id,
        content.id,
        content.target,
        content.key,
        content.size_bytes,
        content.sha256,
        content.state == BackupContentState.DAMAGED,
    )


def lock_older(session: Session, restore_id: int) -> None:
    """Lock a restore and the run that it would read instead: that is not pruned meanwhile."""
    restore = lock_restore(session, restore_id)
    if restore is None or restore.run_id is None:
        return
    for run_id in _older(session, restore.run_id):
        if find_manifest(session, run_id) is not None:
            lock_run(session, run_id)
            return


def choose_older(session: Session, restore_id: int) -> HeldManifest | None:
    """Let a restore read the next older complete run instead; None when there is none.

    The caller has locked with `lock_older`. It begins anew: what is restored already is found to be
    the same. What was noted stays, and the positions of what is noted from now on come behind it
    (`base`).
    """
    restore = session.get(Restore, restore_id)
    if restore is None or restore.state != RestoreState.OPEN or restore.run_id is None:
        raise SupersededError("the restore is over", restore_id=restore_id)
    cursor = restore.cursor or {}
    base = int(cursor.get("base", 0)) + int(cursor.get("offset", 0))
    for run_id in _older(session, restore.run_id):
        found = find_manifest(session, run_id)
        if found is not None:
            restore.run_id, restore.cursor = run_id, {"offset": 0, "base": base}
            session.flush()
            return found
    return None


def _older(session: Session, run_id: int) -> Sequence[int]:
    """Return the complete runs of the same bucket before this one, the newest first."""
    present = session.get_one(BackupRun, run_id)
    return session.scalars(
        sa.select(BackupRun.id)
        .where(
            BackupRun.bucket_id == present.bucket_id,
            BackupRun.state == BackupRunState.COMPLETE,
            BackupRun.snapshot_at < present.snapshot_at,
        )
        .order_by(BackupRun.snapshot_at.desc(), BackupRun.id.desc())
    ).all()
