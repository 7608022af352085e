"""What a restore has done so far: its items, counts and cursor, written in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Restore, RestoreItem, RestoreState, utc_clock
from shared.core.errors import SupersededError


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one entry. `position` is where its line ends."""

    position: int
    key: str
    outcome: str
    size: int
    version_id: int | None = None
    detail: str = ""


def note_results(
    session: Session,
    restore_id: int,
    results: Sequence[Result],
    *,
    cursor: dict[str, Any],
    keeps_items: bool,
) -> dict[str, Any]:
    """Add results to a locked restore and move its cursor; returns the counts.

    Raises SupersededError when it is not open any more: nothing of this transaction may count.
    """
    restore = session.get(Restore, restore_id)
    if restore is None or restore.state != RestoreState.OPEN:
        raise SupersededError("the restore is over", restore_id=restore_id)
    counts = dict(restore.counts or {})
    for result in results:
        counts["entries"] = counts.get("entries", 0) + 1
        counts[result.outcome] = counts.get(result.outcome, 0) + 1
        name = f"{result.outcome}_bytes"
        counts[name] = counts.get(name, 0) + result.size
    if keeps_items and results:
        session.execute(
            sa.insert(RestoreItem),
            [
                {
                    "restore_id": restore_id,
                    "position": one.position,
                    "key": one.key,
                    "outcome": one.outcome,
                    "size_bytes": one.size,
                    "version_id": one.version_id,
                    "detail": one.detail[:512],
                    "created_at": _now(session),
                }
                for one in results
            ],
        )
    restore.counts, restore.cursor = counts, cursor
    session.flush()
    return counts


def _now(session: Session) -> Any:
    return session.scalar(sa.select(utc_clock()))
