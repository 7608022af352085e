"""One try of one channel: intent, checkpoint, bytes, proof, commit.

Failpoints name the protocol's steps. Between any two of them the process may die: what is left is
then either an orphan for the sweep (an intent) or gone on from (the checkpoint).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog
from sqlalchemy.orm import Session

from services.upload.rules import OpenTry, Plan
from shared.catalog import fenced, intents
from shared.catalog.channel_slots import ChannelSlots
from shared.catalog.context import Catalogue
from shared.catalog.erasing import ChannelBook
from shared.catalog.limits import TRIES_PER_CHANNEL
from shared.catalog.locking import lock_blobs
from shared.catalog.sending import TIDY_SECONDS, LocationRows, Sender, done
from shared.catalog.store import IntentLost, Job, StoreCommit, StoredVersion, read_job
from shared.core.clock import Deadline
from shared.core.errors import ResourceBusy, SupersededError
from shared.core.failpoints import failpoint
from shared.outbox import Execution
from shared.outbox.completion import Completion
from shared.outbox.db import Database
from shared.storage.errors import BreakerOpen, ChannelError, SourceError
from shared.storage.registry import OpenChannel
from shared.storage.source import ChannelSource
from shared.storage.staging import Staging
from shared.storage.staging_joins import JOIN_PART_BYTES
from shared.storage.transfer import Transferred

_log = structlog.get_logger("upload")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """What the handler works with."""

    db: Database
    catalogue: Catalogue
    channels: ChannelBook
    staging: Staging
    slots: ChannelSlots = field(default_factory=ChannelSlots)
    tries_per_channel: int = TRIES_PER_CHANNEL
    join_part_bytes: int = JOIN_PART_BYTES


@dataclass(slots=True)
class Upload:
    """One execution's way through the protocol."""

    execution: Execution
    deps: Deps
    job: Job
    plan: Plan
    failed_now: dict[str, str] = field(default_factory=dict)
    #: Channels without a free place, or silent, as far as this execution has asked.
    busy: dict[str, ResourceBusy] = field(default_factory=dict)


class UploadRows(LocationRows):
    """Intents for the bytes of a version that waits in staging."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def lock(self, session: Session) -> object:
        """Lock the version's blob."""
        return lock_blobs(session, [self._job.blob_id])

    def begin(self, session: Session, *, channel: str, execution: Execution) -> tuple[int, str]:
        """See IntentRows.begin."""
        location = intents.begin(
            session,
            version_id=self._job.version_id,
            blob_id=self._job.blob_id,
            channel=channel,
            execution=execution,
        )
        return location.id, location.key


def try_channel(upload: Upload, opened: OpenChannel) -> bool:
    """Send the bytes to one channel and commit; False when the channel failed and is counted."""
    before = upload.plan.current
    try:
        location_id = _begin(upload, opened)
        sent = _send(upload, opened, location_id)
    except BreakerOpen as error:
        # Another's failures opened it: no fault of this try, which goes on later if it had begun.
        upload.failed_now[opened.name] = str(error)
        current = upload.plan.current
        is_fresh = before is None or before.channel != opened.name
        if is_fresh and current is not None and current.progress is None:
            keep(upload, upload.plan.uncounted())
        return False
    except ChannelError as error:
        _note_failure(upload, opened, error)
        return False
    except SourceError:
        # Gone because the version was superseded meanwhile? Then that is how the task ends.
        _read_again(upload)
        raise
    try:
        stored = _commit(upload, location_id, sent, opened)
    except IntentLost:
        keep(upload, upload.plan.failed())
        raise
    failpoint("upload.after_commit")
    _tidy(upload, stored)
    failpoint("upload.after_unlink")
    return True


def _begin(upload: Upload, opened: OpenChannel) -> int:
    """Name the key and count the try, before the first byte; returns the location's id."""
    current = upload.plan.current
    is_same_try = current is not None and current.channel == opened.name
    sender = _sender(upload)
    if current is not None and is_same_try and current.progress:
        adopted = sender.adopt(current.location_id, channel=opened.name, progress=current.progress)
        if adopted:
            return current.location_id
    location_id, key = sender.begin(opened.name)
    keep(
        upload,
        upload.plan.begun(OpenTry(opened.name, location_id, key), is_same_try=is_same_try),
    )
    failpoint("upload.after_checkpoint")
    return location_id


def _send(upload: Upload, opened: OpenChannel, location_id: int) -> Transferred:
    """Transfer the bytes and prove them; goes on from the checkpoint's parts."""
    current = upload.plan.current
    if current is None:
        raise AssertionError("a try is under way")
    return _sender(upload).send(
        ChannelSource(upload.deps.staging, upload.job.staging_key),
        opened,
        row_id=location_id,
        key=current.key,
        size=upload.job.size_bytes,
        sha256=upload.job.sha256,
        progress=current.progress,
        keep=lambda progress: keep(upload, upload.plan.progressed(progress)),
    )


def _sender(upload: Upload) -> Sender:
    rows = UploadRows(upload.job)
    return Sender(upload.execution, upload.deps.db, rows, points="upload")


def _note_failure(upload: Upload, opened: OpenChannel, error: ChannelError) -> None:
    """Give a channel up for this execution, and its upload with it.

    The checkpoint lets go of the upload first: from then on no other execution goes on with it,
    and only then it is aborted.
    """
    current = upload.plan.current
    upload.failed_now[opened.name] = str(error)
    keep(upload, upload.plan.failed())
    failpoint("upload.after_failure")
    _log.warning(
        "channel_failed",
        task_id=upload.execution.task.id,
        version_id=upload.job.version_id,
        channel=opened.name,
        tries=upload.plan.tries.get(opened.name, 0),
        code=error.code,
        error=str(error),
    )
    upload.execution.emit(
        "channel_failed",
        {
            "channel": opened.name,
            "code": error.code,
            "error": str(error)[:500],
            "tries": upload.plan.tries.get(opened.name, 0),
        },
    )
    if current is not None:
        _sender(upload).abort(opened, current.key, current.progress)


def _commit(
    upload: Upload, location_id: int, sent: Transferred, opened: OpenChannel
) -> StoredVersion:
    """Make the version current and the task completed, in one fenced transaction."""
    commit = StoreCommit(
        upload.deps.catalogue,
        version_id=upload.job.version_id,
        location_id=location_id,
        etag=sent.etag,
    )

    def write(tx: Completion) -> StoredVersion:
        stored = commit.apply(tx.session)
        tx.result = {
            "channel": opened.name,
            "location_id": location_id,
            "bytes_sent": sent.bytes_sent,
            "parts_sent": sent.parts_sent,
            "parts_kept": sent.parts_kept,
            "is_duplicate": stored.is_duplicate,
        }
        return stored

    failpoint("upload.before_commit")
    return fenced.complete(upload.execution, upload.deps.db, lock=commit.lock, body=write)


def _tidy(upload: Upload, stored: StoredVersion) -> None:
    """Remove the staging files that nobody names any more; the cleanup finds what is left."""
    deadline = Deadline(TIDY_SECONDS)
    for key in stored.released:
        try:
            upload.deps.staging.remove(key, deadline=deadline)
        except Exception as error:
            _log.info("staging_left_to_cleanup", key=key, error=str(error))


def keep(upload: Upload, plan: Plan) -> None:
    """Keep a plan in the task's row, and only then go by it."""
    progress = plan.current.progress if plan.current else None
    upload.execution.checkpoint(plan.dump(), done(progress)["bytes_done"])
    upload.plan = plan


def _read_again(upload: Upload) -> None:
    job = upload.deps.db.run_session(
        lambda session: read_job(session, upload.job.version_id), read_only=True
    )
    if job is None:
        raise SupersededError("the version was stored meanwhile")
