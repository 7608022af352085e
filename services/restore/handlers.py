"""One lost copy: is it really lost, then another copy or the newest backup that has it, proven.

The new bytes stand under a fresh key; the commit takes the lost location out and needs the blob to
be live. Nothing is skipped silently: what nobody has any more is listed and alarms.
"""

from __future__ import annotations

import structlog
from sqlalchemy.orm import Session

from services.restore.deps import Deps
from services.restore.proving import is_right
from shared.catalog import fenced
from shared.catalog.backups.damage import note_damage, note_right
from shared.catalog.backups.held import HeldCopy
from shared.catalog.channel_slots import resource_of
from shared.catalog.copying import (
    Copied,
    CopyDeps,
    Damage,
    NoSource,
    copy_blob,
    patient_seconds,
)
from shared.catalog.payloads import RestoreBlob
from shared.catalog.restores.blobs import LossCommit, LossJob, note_present, read_loss
from shared.catalog.restores.losses import FoundBy, lock_blob_and_loss, report_loss
from shared.core.errors import ResourceBusy
from shared.core.failpoints import failpoint
from shared.core.outcomes import Fail, Retry, Snooze
from shared.outbox import Execution
from shared.outbox.completion import Completion
from shared.storage.errors import (
    BreakerOpen,
    ChannelError,
    ChannelFull,
    ChannelRefused,
)

__all__ = ["Deps", "restore_blob"]

UNRECOVERABLE = "unrecoverable"
#: Seconds until a channel without room is asked again; the longer it has been full, the later.
ROOM_WAIT_SECONDS = 60.0

_log = structlog.get_logger("restore")


def restore_blob(
    execution: Execution, payload: RestoreBlob, deps: Deps
) -> Snooze | Retry | Fail | None:
    """Restore one lost copy and complete the task in the commit that makes it count.

    Ends superseded when the blob is not live any more, waits uncounted for channels that are left
    alone or full, and fails as `unrecoverable` when no copy and no backup has the content.
    """
    failpoint("restore.claimed")
    job = deps.db.run_session(lambda session: read_loss(session, payload.loss_id), read_only=True)
    if job is None:
        return None
    try:
        is_there = _is_there(execution, job, deps)
    except BreakerOpen as error:
        return Snooze(error.retry_after_seconds + 0.1, reason=str(error))
    if is_there:
        _present(execution, job, deps)
        return None
    failpoint("restore.after_look")
    full: list[Snooze] = []
    refused: ChannelRefused | None = None
    for target in _targets(job, deps):
        try:
            return _bring(execution, job, target, deps)
        except ChannelFull as error:
            full.append(_wait_for_room(execution, target, error))
        except ChannelRefused as error:
            refused = error
    if refused is not None and not full:
        raise refused
    return full[0]


def _bring(
    execution: Execution, job: LossJob, target: str, deps: Deps
) -> Snooze | Retry | Fail | None:
    """Copy to one channel and commit. Raises ChannelFull and ChannelRefused: the next may do."""
    doubts: list[HeldCopy] = []
    with deps.slots.hold(execution, deps.channels.find(target), even_broken=True):
        try:
            answer = copy_blob(execution, _copying(execution, job, doubts, deps), job.copy(target))
        except NoSource as error:
            return _hopeless(job, error, doubts, deps)
        if isinstance(answer, Snooze):
            return answer
        failpoint("restore.before_commit")
        _commit(execution, job, target, answer, deps)
    failpoint("restore.after_commit")
    held = job.held_as(answer.source)
    if held is not None and held.is_damaged:
        deps.db.run_session(lambda session: note_right(session, held.content_id))
    return None


def _is_there(execution: Execution, job: LossJob, deps: Deps) -> bool:
    """Tell whether the bytes are right after all. Raises when the channel does not say."""
    found = deps.channels.find(job.channel)
    return found is not None and is_right(
        execution, deps, found[0], job.key, size=job.size_bytes, sha256=job.sha256
    )


def _present(execution: Execution, job: LossJob, deps: Deps) -> None:
    def write(tx: Completion) -> None:
        note_present(tx.session, job.loss_id)
        tx.result = {"is_present": True}

    fenced.complete(
        execution,
        deps.db,
        lock=lambda session: lock_blob_and_loss(session, job.loss_id),
        body=write,
    )


def _targets(job: LossJob, deps: Deps) -> list[str]:
    """Return the channels that take new bytes: where it was first, then the bucket's in order.

    One that should have a copy already comes into question only where there is no other.
    """
    others = {one.channel for one in job.others}
    found = {name: deps.channels.find(name) for name in job.channels}
    enabled = [name for name in job.channels if (opened := found[name]) and opened[1]]
    useful = [name for name in enabled if name == job.channel or name not in others]
    return useful or enabled[:1] or [job.channel]


def _wait_for_room(execution: Execution, channel: str, error: ChannelFull) -> Snooze:
    _log.warning("restore_without_room", task_id=execution.task.id, channel=channel)
    execution.emit("channel_full", {"channel": channel, "error": str(error)[:500]})
    seconds = patient_seconds(execution, ROOM_WAIT_SECONDS)
    return Snooze(seconds, f"no room: {error}", resource=resource_of(channel))


def _copying(execution: Execution, job: LossJob, doubts: list[HeldCopy], deps: Deps) -> CopyDeps:
    """Return what copying needs. A backup that proves right at a second look is a doubt."""

    def on_damage(damage: Damage) -> None:
        held = job.held_as(damage.source)
        if held is None:
            _report(damage, deps)
            return
        if _is_held(execution, job, held, deps):
            doubts.append(held)
            return
        is_news = deps.db.run_session(
            lambda session: note_damage(session, held.content_id, detail=damage.code)
        )
        if is_news:
            _log.error(
                "backup_damaged", content_id=held.content_id, target=held.target, code=damage.code
            )

    return CopyDeps(
        db=deps.db,
        channels=deps.channels,
        points="restore",
        on_damage=on_damage,
        slots=deps.slots,
    )


def _is_held(execution: Execution, job: LossJob, held: HeldCopy, deps: Deps) -> bool:
    """Read a backup once more that seems damaged: bytes are also damaged on their way."""
    found = deps.channels.find(held.target)
    if found is None:
        return True
    try:
        return is_right(execution, deps, found[0], held.key, size=job.size_bytes, sha256=job.sha256)
    except (ChannelError, ResourceBusy):
        return True


def _report(damage: Damage, deps: Deps) -> None:
    """Report another copy that is lost as well: else it would pass for the content's good one."""
    location_id = damage.source.location_id
    if location_id is None:
        return
    deps.db.run_session(
        lambda session: report_loss(
            session,
            deps.catalogue,
            location_id=location_id,
            found_by=FoundBy.RESTORE,
            detail=damage.code,
        )
    )


def _hopeless(job: LossJob, error: NoSource, doubts: list[HeldCopy], deps: Deps) -> Retry | Fail:
    """Give a content up for now, unless a copy has come up meanwhile or one may be right."""
    if doubts:
        return Retry(reason=str(error))

    def is_news(session: Session) -> bool:
        again = read_loss(session, job.loss_id)
        if again is None:
            return True
        tried = {(one.channel, one.key) for one in job.copy(job.channel).sources}
        return any((one.channel, one.key) not in tried for one in again.copy(job.channel).sources)

    if deps.db.run_session(is_news, read_only=True):
        return Retry(after_seconds=0.0, reason=str(error))
    _log.error(
        "content_unrecoverable",
        loss_id=job.loss_id,
        blob_id=job.blob_id,
        channel=job.channel,
        sha256=job.sha256,
        size_bytes=job.size_bytes,
    )
    return Fail(UNRECOVERABLE, str(error))


def _commit(execution: Execution, job: LossJob, target: str, copied: Copied, deps: Deps) -> None:
    commit = LossCommit(job, target, copied)

    def write(tx: Completion) -> None:
        location_id = commit.apply(tx.session)
        tx.result = {
            "channel": target,
            "location_id": location_id,
            "source": copied.source.channel,
            "bytes_sent": copied.bytes_sent,
            "method": copied.method,
        }

    fenced.complete(execution, deps.db, lock=commit.lock, body=write)
