"""One content of a run: found on the target, or copied there and proven.

Its pin keeps the bytes where they are until the item has ended.
"""

from __future__ import annotations

import sqlalchemy as sa
import structlog
from sqlalchemy.orm import Session

from services.backup.deps import Deps
from shared.catalog import fenced
from shared.catalog.backups.damage import note_damage
from shared.catalog.backups.items import (
    SOURCE_UNAVAILABLE,
    ContentRows,
    ItemCommit,
    ItemJob,
    lock_item_rows,
    lose_item,
    read_item,
)
from shared.catalog.backups.runs import has_open_items, lock_run
from shared.catalog.copying import Copied, CopyDeps, Damage, NoSource, copy_blob
from shared.catalog.models import (
    BackupItemState,
    BackupRun,
    BackupRunState,
    Blob,
    BlobState,
    Location,
    LocationState,
)
from shared.catalog.payloads import BackUpItem
from shared.catalog.replicas.losses import report_loss
from shared.catalog.restores.losses import FoundBy
from shared.core.clock import utc_now
from shared.core.errors import SupersededError
from shared.core.failpoints import failpoint
from shared.core.outcomes import Retry, Snooze
from shared.outbox import Execution
from shared.outbox.completion import Completion
from shared.storage.errors import SourceUnavailable

#: A lost content is asked for so often: its restore may be under way.
LOSE_AFTER_ATTEMPTS = 3
#: At least so long between the tries before a content is given up that nobody could read.
LAST_WAITS_SECONDS = 60.0

_log = structlog.get_logger("backup")


def back_up(execution: Execution, payload: BackUpItem, deps: Deps) -> Snooze | Retry | None:
    """Bring one content to the target, or let the item name what the target has.

    Completes the task in the commit that ends the item. Content that can be read nowhere is lost
    for this run: its losses are reported, and the manifest goes without it. So it does when nobody
    could tell for long, because no channel that has the content answers.
    """
    failpoint("backup.item_claimed")
    job = deps.db.run_session(lambda session: read_item(session, payload.item_id), read_only=True)
    if job is None:
        return None
    copied: Copied | None = None
    if not (job.is_held and _commit(execution, job, None, deps)):
        copy_deps = CopyDeps(
            db=deps.db,
            channels=deps.channels,
            points="backup",
            on_damage=lambda damage: _report(job, damage, deps),
            slots=deps.slots,
        )
        target = deps.channels.find(job.copy.target)
        with deps.slots.hold(execution, target, even_broken=True):
            try:
                answer = copy_blob(execution, copy_deps, job.copy, rows=ContentRows(job))
            except NoSource as error:
                return _lose(execution, job, error, deps)
            except SourceUnavailable as error:
                return _wait_on(execution, job, Retry(reason=str(error)), deps)
            if isinstance(answer, Snooze):
                return _wait_on(execution, job, answer, deps)
            copied = answer
            failpoint("backup.before_item_commit")
            _commit(execution, job, copied, deps)
    failpoint("backup.after_item_commit")
    _wake_run(job, deps)
    return None


def _commit(execution: Execution, job: ItemJob, copied: Copied | None, deps: Deps) -> bool:
    """End the item; False when the target does not hold the content any more."""
    commit = ItemCommit(deps.catalogue, job, copied)

    def write(tx: Completion) -> None:
        result = commit.apply(tx.session)
        if result is None:
            raise _NotHeld
        tx.result = result

    try:
        fenced.complete(execution, deps.db, lock=commit.lock, body=write)
    except _NotHeld:
        return False
    return True


def _lose(execution: Execution, job: ItemJob, error: NoSource, deps: Deps) -> Retry | None:
    """End an item without its content, unless a copy has come up meanwhile."""
    is_early = execution.task.attempt + 1 < LOSE_AFTER_ATTEMPTS
    moved = deps.db.run_session(lambda session: _has_moved(session, job), read_only=True)
    if moved or is_early:
        return Retry(reason=str(error))
    _log.error("backup_source_lost", item_id=job.item_id, blob_id=job.copy.blob_id)
    _end_without(execution, job, BackupItemState.LOST, "source_lost", deps)
    return None


def _wait_on(
    execution: Execution, job: ItemJob, answer: Retry | Snooze, deps: Deps
) -> Retry | Snooze | None:
    """Wait for sources that do not answer, but not for ever: one dead channel ends no backups.

    The tries at the end are counted: a short outage is not taken for a long one.
    """
    is_target = isinstance(answer, Snooze) and answer.resource is not None
    if is_target or not _is_silent(job, deps):
        return answer
    age_seconds = (utc_now() - execution.task.created_at).total_seconds()
    if age_seconds < job.patience_seconds:
        return answer
    if execution.task.attempt + 1 < LOSE_AFTER_ATTEMPTS:
        wait_seconds = answer.after_seconds
        return Retry(max(LAST_WAITS_SECONDS, wait_seconds or 0.0), reason=answer.reason)
    if deps.db.run_session(lambda session: _has_moved(session, job), read_only=True):
        return answer
    _log.error(
        "backup_source_unavailable",
        item_id=job.item_id,
        blob_id=job.copy.blob_id,
        reason=answer.reason,
    )
    _end_without(execution, job, BackupItemState.FAILED, SOURCE_UNAVAILABLE, deps)
    return None


def _is_silent(job: ItemJob, deps: Deps) -> bool:
    """Tell whether it is the sources that are waited for, and not the target."""
    found = deps.channels.find(job.copy.target)
    return found is not None and found[1] and found[0].ready()


def _end_without(
    execution: Execution, job: ItemJob, state: BackupItemState, code: str, deps: Deps
) -> None:
    def write(tx: Completion) -> None:
        lose_item(tx.session, deps.catalogue, job, state, code=code)
        tx.result = {"is_lost": True, "code": code}

    fenced.complete(
        execution, deps.db, lock=lambda session: lock_item_rows(session, job.item_id), body=write
    )
    _wake_run(job, deps)


def _has_moved(session: Session, job: ItemJob) -> bool:
    """Tell whether the content has a copy that was not tried. Superseded when it is on its way out.

    Only what is not pinned goes: contents that are copied as they become live.
    """
    run = session.get(BackupRun, job.run_id)
    blob = session.get(Blob, job.copy.blob_id)
    is_living = blob is not None and blob.state == BlobState.LIVE
    if run is not None and run.state == BackupRunState.FOLLOWING and not is_living:
        raise SupersededError("the content is on its way out", blob_id=job.copy.blob_id)
    tried = {source.location_id for source in job.copy.sources if source.location_id}
    stored = session.scalars(
        sa.select(Location.id).where(
            Location.blob_id == job.copy.blob_id, Location.state == LocationState.STORED
        )
    )
    return any(location_id not in tried for location_id in stored)


def _report(job: ItemJob, damage: Damage, deps: Deps) -> None:
    content_id = job.held_as(damage.source)
    if content_id is not None:
        deps.db.run_session(lambda session: note_damage(session, content_id, detail=damage.code))
    location_id = damage.source.location_id
    if location_id is not None:
        deps.db.run_session(
            lambda session: report_loss(
                session,
                deps.catalogue,
                location_id,
                found_by=FoundBy.BACKUP,
                detail=damage.code,
            )
        )


def _wake_run(job: ItemJob, deps: Deps) -> None:
    """Wake the run when nothing is left to copy; if that is lost, it looks again by itself."""

    def wake(session: Session) -> None:
        if job.run_task_id is None or has_open_items(session, job.run_id):
            return
        lock_run(session, job.run_id)
        if not has_open_items(session, job.run_id):
            deps.catalogue.tasks.wake(session, job.run_task_id)

    deps.db.run_session(wake)


class _NotHeld(Exception):
    """Undoes the commit: the target has lost the content, it is to be copied."""
