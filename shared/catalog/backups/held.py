"""Copies of a content on backup targets, for whoever needs its bytes: the best one first."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.contents import READABLE
from shared.catalog.models import (
    BackupContent,
    BackupContentState,
    BackupItem,
    BackupRun,
    BackupRunState,
)


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """A content on a backup target. A damaged one may be right after all, and is asked last."""

    content_id: int
    target: str
    key: str
    is_damaged: bool = False


def held_copies(
    session: Session,
    tenant_id: str,
    sha256: str,
    size_bytes: int,
    *,
    with_damaged: bool = False,
) -> list[HeldCopy]:
    """Return what backup targets hold of a content: that of the newest complete manifest first.

    What no complete manifest names comes last: it was copied, and verified, all the same. With
    `with_damaged` what was found damaged is behind all others: whoever reads it proves it.
    """
    newest = (
        sa.select(sa.func.max(BackupRun.snapshot_at))
        .join(BackupItem, BackupItem.run_id == BackupRun.id)
        .where(
            BackupItem.content_id == BackupContent.id, BackupRun.state == BackupRunState.COMPLETE
        )
        .correlate(BackupContent)
        .scalar_subquery()
    )
    states = (*READABLE, BackupContentState.DAMAGED) if with_damaged else READABLE
    rows = session.execute(
        sa.select(
            BackupContent.id, BackupContent.target, BackupContent.key, BackupContent.state, newest
        ).where(
            BackupContent.tenant_id == tenant_id,
            BackupContent.sha256 == sha256,
            BackupContent.size_bytes == size_bytes,
            BackupContent.kind == "content",
            BackupContent.state.in_(states),
        )
    ).all()
    ordered = sorted(rows, key=lambda row: str(row[4] or ""), reverse=True)
    copies = [HeldCopy(*row[:3], row[3] == BackupContentState.DAMAGED) for row in ordered]
    return sorted(copies, key=lambda one: one.is_damaged)
