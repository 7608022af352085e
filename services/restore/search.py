"""Looking for lost content: every stored copy of every key with a prefix, page by page."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from services.restore.deps import Deps
from shared.catalog import fenced
from shared.catalog.listing import under
from shared.catalog.models import (
    Blob,
    Location,
    LocationState,
    ObjectRow,
    Restore,
    RestoreState,
    Version,
    VersionState,
    by_index,
)
from shared.catalog.replicas.losses import report_loss
from shared.catalog.restores.losses import FoundBy
from shared.catalog.restores.runs import lock_restore
from shared.core.errors import ResourceBusy, SupersededError
from shared.core.failpoints import failpoint
from shared.outbox import Execution
from shared.storage.awake import awake
from shared.storage.errors import ChannelError, ChecksumMismatch, ObjectMissing
from shared.storage.verify import verify


class Copy(NamedTuple):
    """One stored copy of what stands under one key."""

    key: str
    location_id: int
    channel: str
    physical_key: str
    size_bytes: int
    sha256: str


def search(execution: Execution, restore: Restore, deps: Deps, *, is_deep: bool) -> None:
    """Look at every copy; report those that are missing or, `is_deep`, are other bytes.

    A channel that does not answer proves nothing: its copies are counted as unknown.
    """
    after = (restore.cursor or {}).get("key")
    while True:
        page, last, is_end = deps.db.run_session(
            lambda session, behind=after: _page(  # type: ignore[misc]
                session, restore.bucket_id, restore.prefix, behind, deps.page_entries
            ),
            read_only=True,
        )
        counts: Counter[str] = Counter()
        for copy in page:
            execution.check()
            outcome = _look(execution, deps, copy, is_deep=is_deep)
            counts["entries"] += 1
            counts[outcome] += 1
            counts[f"{outcome}_bytes"] += copy.size_bytes
            if outcome == "lost" and not restore.is_dry_run:
                _report(deps, copy)
        failpoint("restore.before_page")
        if last is not None:
            # The last page as well moves the cursor: who comes after a death counts nothing twice.
            _write(execution, restore.id, counts, last, deps)
            failpoint("restore.after_page")
        if is_end:
            return
        after = last


def _page(
    session: Session, bucket_id: int, prefix: str, after: str | None, limit: int
) -> tuple[list[Copy], str | None, bool]:
    """Return the copies of the next keys, the last of these keys, and whether no more follow."""
    statement = sa.select(ObjectRow.key, ObjectRow.current_version_id).where(
        ObjectRow.bucket_id == bucket_id,
        ObjectRow.is_listed == 1,
        *under(ObjectRow.key, prefix, after=after),
    )
    statement = by_index(statement, ObjectRow, "ix_objects_listing")
    rows = session.execute(statement.order_by(ObjectRow.key).limit(limit)).all()
    names = {row.current_version_id: row.key for row in rows if row.current_version_id}
    found = session.execute(
        sa.select(
            Version.id, Location.id, Location.channel, Location.key, Blob.size_bytes, Blob.sha256
        )
        .join(Blob, Blob.id == Version.blob_id)
        .join(Location, Location.blob_id == Blob.id)
        .where(
            Version.id.in_(sorted(names)),
            Version.state == VersionState.STORED,
            Location.state == LocationState.STORED,
        )
        .order_by(Version.id, Location.id)
    )
    copies = [Copy(names[row[0]], *row[1:]) for row in found]
    return copies, rows[-1].key if rows else None, len(rows) < limit


def _look(execution: Execution, deps: Deps, copy: Copy, *, is_deep: bool) -> str:
    found = deps.channels.find(copy.channel)
    if found is None:
        return "lost"
    try:
        with deps.slots.reading(execution, found[0]):
            if is_deep:
                verify(
                    found[0],
                    copy.physical_key,
                    size=copy.size_bytes,
                    sha256=copy.sha256,
                    check=execution.check,
                    deadline=execution.deadline,
                )
                return "present"
            seen = awake(
                lambda: found[0].channel.head(copy.physical_key, deadline=execution.deadline),
                check=execution.check,
                deadline=execution.deadline,
            )
    except (ObjectMissing, ChecksumMismatch):
        return "lost"
    except ChannelError as error:
        return "lost" if error.code == "short_read" else "unknown"
    except ResourceBusy:
        return "unknown"
    return "present" if seen is not None and seen.size == copy.size_bytes else "lost"


def _report(deps: Deps, copy: Copy) -> None:
    deps.db.run_session(
        lambda session: report_loss(
            session,
            deps.catalogue,
            copy.location_id,
            found_by=FoundBy.OPERATOR,
            detail="found by a search",
        )
    )


def _write(
    execution: Execution, restore_id: int, counts: Counter[str], last: str, deps: Deps
) -> None:
    def write(session: Session) -> dict[str, Any]:
        restore = session.get(Restore, restore_id)
        if restore is None or restore.state != RestoreState.OPEN:
            raise SupersededError("the restore is over", restore_id=restore_id)
        restore.counts = dict(Counter(restore.counts or {}) + counts)
        restore.cursor = {"key": last}
        session.flush()
        return restore.counts

    total = fenced.fenced(
        execution, deps.db, lock=lambda session: lock_restore(session, restore_id), body=write
    )
    execution.emit("progress", {"restore_id": restore_id, **total})
