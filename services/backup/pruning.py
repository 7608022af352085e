"""Pruning of one bucket's target: runs that are kept no longer, then what nothing needs.

Every step asks again under the rows' locks, so that it may die, be repeated, or meet a run that is
about to name a content.
"""

from __future__ import annotations

from functools import partial

import sqlalchemy as sa
import structlog
from sqlalchemy.orm import Session

from services.backup import rules
from services.backup.auditing import audit
from services.backup.deps import Deps
from shared.catalog import fenced
from shared.catalog.backups import retention
from shared.catalog.backups.contents import lock_content_ids
from shared.catalog.backups.erasing import due_contents, erase_content
from shared.catalog.backups.runs import lock_run, policy_of
from shared.catalog.models import Bucket, utc_clock
from shared.catalog.payloads import PruneBackups
from shared.core.failpoints import failpoint
from shared.core.outcomes import Snooze
from shared.outbox import Execution
from shared.outbox.db import Database

#: Rows that one transaction takes.
PAGE_ROWS = 200

_log = structlog.get_logger("backup")


def prune(execution: Execution, payload: PruneBackups, deps: Deps) -> Snooze | None:
    """Drop old runs by the bucket's rule, and remove what no complete or open run names.

    Waits uncounted while a grace is running, and for a target that fails. A bucket without a rule
    for this target keeps its runs.
    """
    failpoint("backup.prune_claimed")
    for run_id in deps.db.run_session(lambda session: _outlived(session, payload), read_only=True):
        execution.check()
        is_pruned = fenced.fenced(
            execution,
            deps.db,
            lock=partial(lock_run, run_id=run_id),
            body=partial(_prune_run, run_id=run_id),
        )
        failpoint("backup.after_prune_run")
        if is_pruned:
            _log.info("backup_run_pruned", run_id=run_id)
    _forget_items(execution, payload, deps)
    due = _condemn(execution, payload, deps)
    failpoint("backup.after_condemn")
    with deps.slots.hold(execution, deps.channels.find(payload.target), even_broken=True):
        parked = _erase(execution, payload.target, deps)
    if not execution.task.checkpoint:
        # Once per pruning, however often it comes back for what waits.
        audit(execution, payload.target, deps)
        execution.checkpoint({"audited": True}, 1)
    if parked:
        return Snooze(60.0, reason=f"{parked} contents could not be removed")
    if due is not None:
        return Snooze(min(rules.MOST_PRUNE_SECONDS, max(1.0, due)), reason="grace")
    return None


def _outlived(session: Session, payload: PruneBackups) -> list[int]:
    policy = policy_of(session.get(Bucket, payload.bucket_id))
    now = session.scalar(sa.select(utc_clock()))
    if policy is None or policy.target != payload.target or now is None:
        return []
    runs = retention.complete_runs(session, payload.bucket_id, payload.target)
    whole = retention.whole_runs(session, runs)
    kept = [
        rules.Kept(run.id, run.snapshot_at, run.id in whole)
        for run in runs
        if run.snapshot_at is not None
    ]
    return rules.outlived(kept, policy, now=now)


def _prune_run(session: Session, run_id: int) -> bool:
    """Drop a locked run, unless a restore reads it: a later pruning finds it again."""
    if retention.is_read(session, run_id):
        return False
    retention.prune_run(session, run_id)
    return True


def _forget_items(execution: Execution, payload: PruneBackups, deps: Deps) -> None:
    while True:
        execution.check()
        gone = fenced.fenced(
            execution,
            deps.db,
            lock=fenced.no_lock,
            body=lambda session: retention.forget_items(
                session, payload.bucket_id, payload.target, limit=PAGE_ROWS
            ),
        )
        if gone < PAGE_ROWS:
            return


def _condemn(execution: Execution, payload: PruneBackups, deps: Deps) -> float | None:
    """Condemn what nothing needs; returns the seconds until the next one may go, if one waits."""
    tenant_id, after, first = execution.task.tenant_id, 0, None
    grace = deps.db.run_session(
        lambda session: retention.grace_seconds(
            session, tenant_id, payload.target, bucket_id=payload.bucket_id
        ),
        read_only=True,
    )
    while True:
        execution.check()
        ids, lonely = _look(deps.db, payload.target, tenant_id, after)
        if lonely:
            looked = fenced.fenced(
                execution,
                deps.db,
                lock=partial(lock_content_ids, ids=lonely),
                body=partial(retention.condemn_unneeded, ids=lonely, grace=grace),
            )
            if looked.due_in_seconds is not None:
                first = min(looked.due_in_seconds, first or looked.due_in_seconds)
        if len(ids) < PAGE_ROWS:
            return first
        after = ids[-1]


def _look(db: Database, target: str, tenant_id: str, after: int) -> tuple[list[int], list[int]]:
    def read(session: Session) -> tuple[list[int], list[int]]:
        ids = list(retention.page_of_held(session, target, tenant_id, after, limit=PAGE_ROWS))
        return ids, retention.unneeded(session, ids)

    return db.run_session(read, read_only=True)


def _erase(execution: Execution, target: str, deps: Deps) -> int:
    """Remove what is condemned; returns how many could not be removed now."""
    parked, seen = 0, set()
    while True:
        places = deps.db.run_session(
            lambda session: due_contents(session, target=target, limit=PAGE_ROWS), read_only=True
        )
        new = [place for place in places if place.location_id not in seen]
        if not new:
            return parked
        for place in new:
            execution.check()
            seen.add(place.location_id)
            parked += not erase_content(
                deps.db,
                deps.channels,
                place,
                deadline=execution.deadline,
                check=execution.check,
            )
