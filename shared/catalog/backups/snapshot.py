"""Which versions a run's snapshot holds: stored at its moment, whatever happened to them since.

Two walks, each by keyset: over what is still stored, then over what was overwritten or deleted
after the snapshot. A version that moves from one to the other meanwhile is met in one of them at
least, perhaps in both. A commit that was under way at the snapshot's moment may be met by neither:
hence a second round, when all of those have ended.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import BackupRun, Version, VersionState, by_index

#: Walks of a snapshot, in this order.
STORED, ENDED, DONE = "stored", "ended", "done"


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where an enumeration stands: which walk, behind what, and whether it is the last round."""

    walk: str = STORED
    after_id: int = 0
    after_time: dt.datetime | None = None
    is_last: bool = False

    @classmethod
    def load(cls, saved: dict[str, Any] | None) -> Cursor:
        """Read what `dump` gave."""
        if not saved:
            return cls()
        time = saved.get("time")
        return cls(
            saved["walk"],
            int(saved["id"]),
            dt.datetime.fromisoformat(time) if time else None,
            bool(saved.get("last")),
        )

    def dump(self) -> dict[str, Any]:
        """Return plain values for a row."""
        time = None if self.after_time is None else self.after_time.isoformat()
        return {"walk": self.walk, "id": self.after_id, "time": time, "last": self.is_last}

    @property
    def is_done(self) -> bool:
        """Tell whether nothing is left of this round."""
        return self.walk == DONE

    @property
    def is_first_page(self) -> bool:
        """Tell whether a round begins here."""
        return self.walk == STORED and self.after_id == 0


def page_of_versions(
    session: Session, run: BackupRun, cursor: Cursor, *, limit: int
) -> tuple[Sequence[Version], Cursor]:
    """Return the next versions of the snapshot, and where the walk stands behind them."""
    if cursor.walk == STORED:
        statement = by_index(_of(run), Version, "ix_versions_bucket").where(
            Version.state == VersionState.STORED,
            Version.id > cursor.after_id,
            Version.id <= run.snapshot_version_id,
        )
        rows = session.scalars(statement.order_by(Version.id).limit(limit)).all()
        if len(rows) < limit:
            return rows, replace(cursor, walk=ENDED, after_id=0, after_time=run.snapshot_at)
        return rows, replace(cursor, after_id=rows[-1].id)
    since = cursor.after_time
    statement = by_index(_of(run), Version, "ix_versions_ended").where(
        Version.ended_at >= since,
        sa.or_(Version.ended_at > since, Version.id > cursor.after_id),
        Version.state.in_((VersionState.REPLACED, VersionState.DELETED)),
        Version.id <= run.snapshot_version_id,
    )
    rows = session.scalars(statement.order_by(Version.ended_at, Version.id).limit(limit)).all()
    if len(rows) < limit:
        return rows, Cursor(DONE, is_last=cursor.is_last)
    return rows, replace(cursor, after_id=rows[-1].id, after_time=rows[-1].ended_at)


def _of(run: BackupRun) -> sa.Select[Version]:
    return (
        sa.select(Version)
        .where(Version.bucket_id == run.bucket_id, Version.stored_at <= run.snapshot_at)
        .execution_options(populate_existing=True)
    )
