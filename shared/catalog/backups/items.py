"""One item of a run: what there is to copy, its intents on the target, and its commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backup_policy import LEAST_PATIENCE_SECONDS, MOST_PATIENCE_SECONDS
from shared.catalog.backups.contents import (
    adopt_content,
    begin_content,
    keep_content_upload,
    lock_content_ids,
    store_content,
    stored_contents,
)
from shared.catalog.backups.held import HeldCopy, held_copies
from shared.catalog.backups.runs import policy_of
from shared.catalog.blobs import drop_reference
from shared.catalog.context import Catalogue
from shared.catalog.copying import Copied, CopyJob, SourceCopy, read_sources
from shared.catalog.locking import lock_blobs
from shared.catalog.models import (
    BackupContent,
    BackupContentState,
    BackupItem,
    BackupItemState,
    BackupRun,
    BackupRunState,
    Blob,
    Bucket,
    HolderKind,
    utc_clock,
)
from shared.catalog.store import IntentLost
from shared.core.errors import SupersededError

if TYPE_CHECKING:
    from shared.outbox.execution import Execution

#: Code of an item whose content nobody could read for as long as it was waited for.
SOURCE_UNAVAILABLE = "source_unavailable"
#: Items of runs in one of these are worked on.
_WORKING = (BackupRunState.OPEN, BackupRunState.FOLLOWING)


@dataclass(frozen=True, slots=True)
class ItemJob:
    """What one item has to do; without `copy` the target holds the content already."""

    item_id: int
    run_id: int
    run_task_id: int | None
    tenant_id: str
    copy: CopyJob
    is_held: bool
    elsewhere: tuple[HeldCopy, ...]
    #: How long sources that do not answer are waited for.
    patience_seconds: float

    def held_as(self, source: SourceCopy) -> int | None:
        """Return the content of another target that a source is, None for a location."""
        names = {(one.target, one.key): one.content_id for one in self.elsewhere}
        return None if source.location_id else names.get((source.channel, source.key))


def read_item(session: Session, item_id: int) -> ItemJob | None:
    """Return an item's work, None when it is done. Raises SupersededError when nobody waits."""
    row = session.execute(
        sa.select(BackupItem, BackupRun, Blob)
        .join(BackupRun, BackupRun.id == BackupItem.run_id)
        .join(Blob, Blob.id == BackupItem.blob_id)
        .where(BackupItem.id == item_id)
        .execution_options(populate_existing=True)
    ).one_or_none()
    if row is None:
        raise SupersededError("the item is gone", item_id=item_id)
    item, run, blob = row
    if item.state == BackupItemState.DONE:
        return None
    if item.state != BackupItemState.OPEN or run.state not in _WORKING:
        raise SupersededError(f"the item is {item.state}, its run {run.state}", item_id=item_id)
    held = stored_contents(session, run.target, run.tenant_id, [blob.sha256])
    # Another target's copy is as good as any, and the last that is asked.
    elsewhere = tuple(
        one
        for one in held_copies(session, run.tenant_id, blob.sha256, blob.size_bytes)
        if one.target != run.target
    )
    policy = policy_of(session.get(Bucket, run.bucket_id))
    longest = MOST_PATIENCE_SECONDS if policy is None else policy.patience_seconds
    return ItemJob(
        item_id=item.id,
        run_id=run.id,
        run_task_id=run.task_id,
        tenant_id=run.tenant_id,
        copy=CopyJob(
            blob_id=blob.id,
            size_bytes=blob.size_bytes,
            sha256=blob.sha256,
            sources=(
                *read_sources(session, blob.id),
                *(SourceCopy(None, one.target, one.key) for one in elsewhere),
            ),
            target=run.target,
        ),
        is_held=(blob.sha256, blob.size_bytes) in held,
        elsewhere=elsewhere,
        patience_seconds=LEAST_PATIENCE_SECONDS if _is_known_away(session, item) else longest,
    )


def _is_known_away(session: Session, item: BackupItem) -> bool:
    """Tell whether an earlier run has waited for the content in vain: none copied it since."""
    waited = sa.exists().where(
        BackupItem.blob_id == item.blob_id,
        BackupItem.run_id < item.run_id,
        BackupItem.error_code == SOURCE_UNAVAILABLE,
    )
    return session.scalar(sa.select(waited)) is True


class ContentRows:
    """Intents on a backup target, for `copy_blob`."""

    def __init__(self, job: ItemJob) -> None:
        self._job = job

    def lock(self, session: Session) -> object:
        """Lock the item."""
        return _lock_item(session, self._job.item_id)

    def begin(self, session: Session, *, channel: str, execution: Execution) -> tuple[int, str]:
        """See IntentRows.begin."""
        item = session.get(BackupItem, self._job.item_id)
        run = session.get(BackupRun, self._job.run_id, populate_existing=True)
        if (
            item is None
            or item.state != BackupItemState.OPEN
            or run is None
            or run.state not in _WORKING
        ):
            raise SupersededError("the run is over", item_id=self._job.item_id)
        content = begin_content(
            session,
            target=channel,
            tenant_id=self._job.tenant_id,
            kind="content",
            prefix=self._job.tenant_id,
            sha256=self._job.copy.sha256,
            size_bytes=self._job.copy.size_bytes,
            run_id=run.id,
            execution=execution,
        )
        return content.id, content.key

    def adopt(self, session: Session, row_id: int, *, execution: Execution) -> bool:
        """See IntentRows.adopt."""
        return adopt_content(session, row_id, execution=execution)

    def keep_upload_id(self, session: Session, row_id: int, upload_id: str) -> None:
        """See IntentRows.keep_upload_id."""
        keep_content_upload(session, row_id, upload_id)


class ItemCommit:
    """The end of an item whose content the target holds: `copied`, or found there without."""

    def __init__(self, catalogue: Catalogue, job: ItemJob, copied: Copied | None) -> None:
        self._catalogue = catalogue
        self._job = job
        self._copied = copied
        self._locked: dict[int, BackupContent] = {}

    def lock(self, session: Session) -> None:
        """Lock the blob, what the target holds of it and our intent, and the item."""
        copy = self._job.copy
        lock_blobs(session, [copy.blob_id])
        held = stored_contents(session, copy.target, self._job.tenant_id, [copy.sha256])
        ids = [one.id for one in held.values() if one.size_bytes == copy.size_bytes]
        if self._copied is not None:
            ids.append(self._copied.location_id)
        self._locked = lock_content_ids(session, ids)
        _lock_item(session, self._job.item_id)

    def apply(self, session: Session) -> dict[str, Any] | None:
        """Let the item name the content, and its pin go; returns the task's result.

        None when the target does not hold it any more: it is to be copied. Raises SupersededError
        when the run is over, and IntentLost when a sweep has taken our intent.
        """
        item, run, blob = _open_item(session, self._job)
        own = None if self._copied is None else self._locked.get(self._copied.location_id)
        other = next(
            (
                one
                for one in self._locked.values()
                if one.state == BackupContentState.STORED and one is not own
            ),
            None,
        )
        if other is None and own is None and self._copied is None:
            return None
        if other is None:
            if own is None or own.state != BackupContentState.INTENT or self._copied is None:
                raise IntentLost("a sweep has taken the intent", item_id=item.id)
            store_content(own, etag=self._copied.etag)
        content = other or own
        if content is None:
            raise AssertionError("the target holds it")
        content.unneeded_at = None
        item.content_id, item.is_reused = content.id, int(other is not None)
        _end_item(session, self._catalogue, item, run, blob, BackupItemState.DONE)
        return {
            "content_id": content.id,
            "is_reused": other is not None,
            "bytes_sent": 0 if self._copied is None else self._copied.bytes_sent,
            "method": "reference" if self._copied is None else self._copied.method,
        }


def lose_item(
    session: Session, catalogue: Catalogue, job: ItemJob, state: BackupItemState, *, code: str
) -> None:
    """End an item whose content could not be read: the manifest goes without its bytes.

    `state` is LOST when it is nowhere, FAILED when nobody could tell. The caller has locked with
    `lock_item_rows`.
    """
    item, run, blob = _open_item(session, job)
    _end_item(session, catalogue, item, run, blob, state, code=code)


def lock_item_rows(session: Session, item_id: int) -> tuple[BackupItem, Blob | None] | None:
    """Lock an item's blob and the item; None when it is gone."""
    blob_id = session.scalar(sa.select(BackupItem.blob_id).where(BackupItem.id == item_id))
    if blob_id is None:
        return None
    blob = lock_blobs(session, [blob_id]).get(blob_id)
    item = _lock_item(session, item_id)
    return None if item is None else (item, blob)


def close_item(
    session: Session,
    catalogue: Catalogue,
    item: BackupItem,
    blob: Blob | None,
    state: BackupItemState,
    *,
    code: str | None = None,
) -> None:
    """End a locked open item without its content, and let its pin go."""
    item.state, item.error_code, item.ended_at = state, code, utc_clock()
    session.flush()
    if blob is not None:
        drop_reference(session, catalogue, blob, HolderKind.BACKUP, item.run_id)


def _end_item(
    session: Session,
    catalogue: Catalogue,
    item: BackupItem,
    run: BackupRun,
    blob: Blob | None,
    state: BackupItemState,
    *,
    code: str | None = None,
) -> None:
    close_item(session, catalogue, item, blob, state, code=code)
    if run.state == BackupRunState.FOLLOWING:
        # Nothing is restored from it: what it has copied is found by its content.
        session.delete(item)
        session.flush()


def _open_item(session: Session, job: ItemJob) -> tuple[BackupItem, BackupRun, Blob | None]:
    item = session.get(BackupItem, job.item_id)
    run = session.get(BackupRun, job.run_id, populate_existing=True)
    if (
        item is None
        or item.state != BackupItemState.OPEN
        or run is None
        or run.state not in _WORKING
    ):
        raise SupersededError("the run is over", item_id=job.item_id)
    return item, run, session.get(Blob, job.copy.blob_id)


def _lock_item(session: Session, item_id: int) -> BackupItem | None:
    return session.scalars(
        sa.select(BackupItem)
        .where(BackupItem.id == item_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()
