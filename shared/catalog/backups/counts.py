"""What a backup run has done so far, counted from its items."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import BackupItem, BackupItemState, BackupRun

#: Beside the counts of a run: the grace of the rule by which it began, for when there is no rule.
GRACE = "grace_seconds"
#: What the items do not tell.
_KEPT = ("versions", "missed", GRACE)


def shown(counts: dict[str, Any]) -> dict[str, Any]:
    """Return what is counted, without what is kept beside it."""
    return {name: value for name, value in counts.items() if name != GRACE}


def count_items(session: Session, run: BackupRun) -> dict[str, Any]:
    """Return the counts of a run: versions met so far, and contents by what became of them.

    `lost` ones could be read nowhere, `failed` ones not be copied: the backup is not whole.
    """
    rows = session.execute(
        sa.select(
            BackupItem.state,
            BackupItem.is_reused,
            sa.func.count(),
            sa.func.coalesce(sa.func.sum(BackupItem.size_bytes), 0),
        )
        .where(BackupItem.run_id == run.id)
        .group_by(BackupItem.state, BackupItem.is_reused)
    ).all()
    counts: dict[str, Any] = {
        "versions": 0,
        "missed": 0,
        "items": 0,
        "bytes": 0,
        "copied": 0,
        "copied_bytes": 0,
        "reused": 0,
        "reused_bytes": 0,
        "open": 0,
        "lost": 0,
        "failed": 0,
        **{name: n for name, n in (run.counts or {}).items() if name in _KEPT},
    }
    for state, is_reused, count, size in rows:
        counts["items"] += int(count)
        counts["bytes"] += int(size)
        if state == BackupItemState.DONE:
            name = "reused" if is_reused else "copied"
            counts[name] += int(count)
            counts[f"{name}_bytes"] += int(size)
        elif state == BackupItemState.CANCELLED:
            # Of an open run: somebody has cancelled the item's task.
            counts["failed"] += int(count)
        else:
            counts[str(state)] += int(count)
    return counts
