"""A run from its first page to its manifest: enumerate, wait for the items, write, complete.

What a run knows stands in its row, so that any worker goes on where the last one stopped.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
import structlog
from sqlalchemy.orm import Session

from services.backup import rules
from services.backup.auditing import audit_before_run
from services.backup.deps import Deps
from services.backup.writing import write_manifest
from shared.catalog import fenced
from shared.catalog.backups.counts import count_items
from shared.catalog.backups.enumerating import PageCommit
from shared.catalog.backups.runs import (
    PINS_EXPIRED,
    begin_last_round,
    has_open_items,
    lock_run,
)
from shared.catalog.backups.snapshot import Cursor
from shared.catalog.models import BackupRun, BackupRunState, utc_clock
from shared.catalog.payloads import RunBackup
from shared.core.errors import SupersededError
from shared.core.failpoints import failpoint
from shared.core.outcomes import Fail, Snooze
from shared.outbox import Execution

__all__ = ["Deps", "run"]

_log = structlog.get_logger("backup")


def run(execution: Execution, payload: RunBackup, deps: Deps) -> Snooze | Fail | None:
    """Carry a run on as far as it goes now.

    Waits uncounted for its items, whose last one wakes it. Completes the task in the commit that
    makes the run complete, also when some contents could not be read or copied: its manifest says
    which. Fails when there is nothing that it could name, or the pins were held for a day: the next
    run finds on the target what was copied.
    """
    failpoint("backup.claimed")
    current = deps.db.run_session(lambda session: _read(session, payload.run_id), read_only=True)
    if current.state == BackupRunState.COMPLETE:
        return None
    if current.state != BackupRunState.OPEN:
        raise SupersededError(f"the run is {current.state}", run_id=current.id)
    begun = Cursor.load(current.cursor)
    if begun.is_first_page and not begun.is_last:
        audit_before_run(execution, current.target, deps)
    cursor = _enumerate(execution, current, deps)
    counts, seconds_left, age_seconds = _count(execution, current.id, deps)
    if not cursor.is_last:
        if age_seconds < deps.settle_seconds:
            wait_seconds = deps.settle_seconds - age_seconds
            return Snooze(wait_seconds, reason="commits may be under way from before the snapshot")
        _enumerate_again(execution, current.id, deps)
        counts, seconds_left, age_seconds = _count(execution, current.id, deps)
    if seconds_left <= 0:
        return Fail(PINS_EXPIRED, "contents are held back from deletion for a day at most")
    if counts["open"]:
        return Snooze(
            min(rules.wait_seconds(age_seconds), seconds_left),
            reason=f"{counts['open']} contents are to be copied",
            ready=lambda session: _is_ready(session, payload.run_id),
        )
    if counts["failed"] and not (counts["copied"] or counts["reused"]):
        return Fail("items_failed", f"none of {counts['failed']} contents could be copied")
    failpoint("backup.items_ended")
    with deps.slots.hold(execution, deps.channels.find(current.target)):
        write_manifest(execution, current.id, counts, deps)
    failpoint("backup.after_commit")
    if counts["lost"] or counts["failed"]:
        _log.error(
            "backup_incomplete",
            run_id=current.id,
            lost=counts["lost"],
            failed=counts["failed"],
        )
    return None


def _read(session: Session, run_id: int) -> BackupRun:
    found = session.get(BackupRun, run_id)
    if found is None:
        raise SupersededError("the run is gone", run_id=run_id)
    return found


def _enumerate_again(execution: Execution, run_id: int, deps: Deps) -> None:
    """Go over the snapshot once more: what it holds is certain by now."""
    fenced.fenced(
        execution,
        deps.db,
        lock=lambda session: lock_run(session, run_id),
        body=lambda session: begin_last_round(session, run_id),
    )
    failpoint("backup.after_round")
    current = deps.db.run_session(lambda session: _read(session, run_id), read_only=True)
    _enumerate(execution, current, deps)


def _enumerate(execution: Execution, current: BackupRun, deps: Deps) -> Cursor:
    """Make the items of all pages that are left, each page in one fenced transaction."""
    cursor = Cursor.load(current.cursor)
    while not cursor.is_done:
        execution.check()
        page = PageCommit(deps.catalogue, current.id, limit=deps.page_versions)
        cursor = fenced.fenced(execution, deps.db, lock=page.lock, body=page.apply)
        failpoint("backup.after_page")
        execution.emit("enumerated", {"run_id": current.id, "cursor": cursor.dump()})
    return cursor


def _count(execution: Execution, run_id: int, deps: Deps) -> tuple[dict[str, Any], float, float]:
    """Write the run's counts; returns them, the seconds left for its pins, and its age."""

    def write(session: Session) -> tuple[dict[str, Any], float, float]:
        found = session.get(BackupRun, run_id)
        if found is None or found.state != BackupRunState.OPEN:
            raise SupersededError("the run is over", run_id=run_id)
        counts = count_items(session, found)
        is_news = counts != found.counts
        found.counts = counts
        now = session.scalar(sa.select(utc_clock()))
        if now is None or found.pins_until is None:
            raise AssertionError("an open run holds pins until a moment")
        session.flush()
        left = (found.pins_until - now).total_seconds()
        return {**counts, "is_news": is_news}, left, (now - found.created_at).total_seconds()

    counts, left, age = fenced.fenced(
        execution, deps.db, lock=lambda session: lock_run(session, run_id), body=write
    )
    if counts.pop("is_news"):
        execution.emit("progress", {"run_id": run_id, **counts})
    return counts, left, age


def _is_ready(session: Session, run_id: int) -> bool:
    """Look again under the run's lock, which the waking transaction takes as well."""
    lock_run(session, run_id)
    return not has_open_items(session, run_id)
