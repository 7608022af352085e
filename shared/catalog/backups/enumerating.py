"""One page of a run's enumeration: items, and pins for what is to be copied, in one transaction.

What the target holds already becomes a done item at once: neither a pin nor a task. A blob that is
to be copied is pinned under its lock; one that is gone by then is counted as missed.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.contents import lock_contents, stored_contents
from shared.catalog.backups.runs import lock_run
from shared.catalog.backups.snapshot import Cursor, page_of_versions
from shared.catalog.blobs import add_reference
from shared.catalog.context import Catalogue
from shared.catalog.locking import lock_blobs
from shared.catalog.models import (
    BackupContent,
    BackupContentState,
    BackupItem,
    BackupItemState,
    BackupRun,
    BackupRunState,
    Blob,
    BlobState,
    Bucket,
    HolderKind,
    Version,
    utc_clock,
)
from shared.catalog.payloads import BACKUP_ITEM, BackUpItem
from shared.catalog.regions import region_of
from shared.core.errors import SupersededError

#: Versions of one page; its transaction locks as many blobs at most.
PAGE_VERSIONS = 200
_PINNABLE = (BlobState.LIVE, BlobState.CONDEMNED)


class PageCommit:
    """One page: `lock` reads and locks it, `apply` writes. Both may run again from the start."""

    def __init__(self, catalogue: Catalogue, run_id: int, *, limit: int = PAGE_VERSIONS) -> None:
        self._catalogue = catalogue
        self._run_id = run_id
        self._limit = limit
        self._seen: Cursor = Cursor()
        self._next: Cursor = Cursor()
        self._versions: Sequence[Version] = ()
        self._blobs: dict[int, Blob] = {}
        self._contents: dict[str, BackupContent] = {}
        self._known: set[int] = set()

    def lock(self, session: Session) -> None:
        """Lock the page's new blobs, what the target holds of the others, and the run."""
        run = session.get(BackupRun, self._run_id, populate_existing=True)
        if run is None:
            raise SupersededError("the run is gone", run_id=self._run_id)
        self._seen = Cursor.load(run.cursor)
        self._versions, self._next = (), self._seen
        if not self._seen.is_done:
            self._versions, self._next = page_of_versions(
                session, run, self._seen, limit=self._limit
            )
        blob_ids = {version.blob_id for version in self._versions}
        self._known = set(
            session.scalars(
                sa.select(BackupItem.blob_id).where(
                    BackupItem.run_id == run.id, BackupItem.blob_id.in_(sorted(blob_ids))
                )
            )
        )
        new = [version for version in self._versions if version.blob_id not in self._known]
        held = stored_contents(
            session, run.target, run.tenant_id, {version.sha256 for version in new}
        )
        missing = {v.blob_id for v in new if (v.sha256, v.size_bytes) not in held}
        self._blobs = lock_blobs(session, missing)
        locked = lock_contents(session, held.values())
        self._contents = {
            one.sha256: one for one in locked.values() if one.state == BackupContentState.STORED
        }
        lock_run(session, self._run_id)

    def apply(self, session: Session) -> Cursor:
        """Write items, pins, tasks and the run's cursor; returns where the enumeration stands.

        Raises SupersededError when the run is not open any more.
        """
        run = session.get(BackupRun, self._run_id)
        if run is None or run.state != BackupRunState.OPEN:
            state = "gone" if run is None else run.state
            raise SupersededError(f"the run is {state}", run_id=self._run_id)
        if Cursor.load(run.cursor) != self._seen:
            # Another execution of this task was faster, and has lost its fence since.
            return Cursor.load(run.cursor)
        bucket = session.get(Bucket, run.bucket_id)
        region = "" if bucket is None else region_of(session, bucket, "backup")
        missed = 0
        for version in sorted(self._versions, key=lambda one: one.blob_id):
            if version.blob_id in self._known:
                continue
            self._known.add(version.blob_id)
            missed += not self._add(session, run, version, region)
        counts = dict(run.counts or {})
        if self._seen.is_first_page:
            counts["versions"] = counts["missed"] = 0
        counts["versions"] = counts.get("versions", 0) + len(self._versions)
        counts["missed"] = counts.get("missed", 0) + missed
        run.counts, run.cursor = counts, self._next.dump()
        session.flush()
        return self._next

    def _add(self, session: Session, run: BackupRun, version: Version, region: str) -> bool:
        content = self._contents.get(version.sha256)
        if content is not None and content.size_bytes == version.size_bytes:
            content.unneeded_at = None
            session.add(
                BackupItem(
                    run_id=run.id,
                    blob_id=version.blob_id,
                    state=BackupItemState.DONE,
                    size_bytes=version.size_bytes,
                    is_reused=1,
                    content_id=content.id,
                    created_at=utc_clock(),
                    ended_at=utc_clock(),
                )
            )
            return True
        blob = self._blobs.get(version.blob_id)
        if blob is None or blob.state not in _PINNABLE:
            return False
        add_reference(session, blob, HolderKind.BACKUP, run.id)
        add_item(session, self._catalogue, run, blob, region=region)
        return True


def add_item(
    session: Session, catalogue: Catalogue, run: BackupRun, blob: Blob, *, region: str
) -> BackupItem:
    """Add a content that is to be copied, with its task."""
    item = BackupItem(
        run_id=run.id,
        blob_id=blob.id,
        state=BackupItemState.OPEN,
        size_bytes=blob.size_bytes,
        created_at=utc_clock(),
    )
    session.add(item)
    session.flush()
    item.task_id = catalogue.tasks.enqueue(
        session,
        BACKUP_ITEM,
        BackUpItem(item_id=item.id),
        tenant_id=run.tenant_id,
        region=region,
        dedupe_key=f"backup-item:{item.id}",
    ).id
    session.flush()
    return item
