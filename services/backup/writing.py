"""The manifest: streamed to the target under a fresh key, proven, and last of all the run complete.

An attempt that dies leaves an intent for the sweep; the next one writes under another key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy.orm import Session

from services.backup.deps import Deps
from shared.catalog import fenced
from shared.catalog.backups import manifest
from shared.catalog.backups.contents import (
    begin_content,
    keep_content_upload,
    lock_content_ids,
    store_content,
)
from shared.catalog.backups.counts import shown
from shared.catalog.backups.runs import enqueue_prune, has_open_items, lock_run, policy_of
from shared.catalog.backups.snapshot import Cursor
from shared.catalog.models import BackupContentState, BackupRun, BackupRunState, Bucket, utc_clock
from shared.catalog.store import IntentLost
from shared.core.errors import SupersededError, TransientError
from shared.core.failpoints import failpoint
from shared.outbox import Execution
from shared.outbox.completion import Completion
from shared.storage.body import Body
from shared.storage.channel import Part
from shared.storage.crew import Crew
from shared.storage.errors import ChannelUnavailable
from shared.storage.registry import OpenChannel
from shared.storage.verify import verify

#: Entries that one look reads.
PAGE_ENTRIES = 500


@dataclass(frozen=True, slots=True)
class Written:
    """A manifest that the target has, proven."""

    content_id: int
    sha256: str
    size: int
    etag: str
    entries: int
    lacking: int


def write_manifest(execution: Execution, run_id: int, counts: dict[str, Any], deps: Deps) -> None:
    """Write the manifest of a run whose items have all ended, and complete run and task."""
    run, bucket, content_id, key = fenced.fenced(
        execution,
        deps.db,
        lock=lambda session: lock_run(session, run_id),
        body=lambda session: _begin(session, run_id, execution),
    )
    failpoint("backup.after_manifest_intent")
    found = deps.channels.find(run.target)
    if found is None:
        raise ChannelUnavailable("the backup target is gone", channel=run.target)
    written = _stream(execution, run, bucket, content_id, key, found[0], deps)
    failpoint("backup.after_manifest")
    commit = _RunCommit(run_id, written, counts, deps)
    fenced.complete(execution, deps.db, lock=commit.lock, body=commit.apply)


def _begin(
    session: Session, run_id: int, execution: Execution
) -> tuple[BackupRun, Bucket | None, int, str]:
    run = session.get(BackupRun, run_id)
    if run is None or run.state != BackupRunState.OPEN:
        raise SupersededError("the run is over", run_id=run_id)
    bucket = session.get(Bucket, run.bucket_id)
    content = begin_content(
        session,
        target=run.target,
        tenant_id=run.tenant_id,
        kind="manifest",
        prefix=f"manifests/{run.tenant_id}/{bucket.name if bucket else run.bucket_id}",
        sha256="",
        size_bytes=0,
        run_id=run.id,
        execution=execution,
    )
    return run, bucket, content.id, content.key


def _stream(
    execution: Execution,
    run: BackupRun,
    bucket: Bucket | None,
    content_id: int,
    key: str,
    opened: OpenChannel,
    deps: Deps,
) -> Written:
    def keep(upload_id: str) -> None:
        fenced.fenced(
            execution,
            deps.db,
            lock=fenced.no_lock,
            body=lambda session: keep_content_upload(session, content_id, upload_id),
        )

    entries = size = lacking = 0
    with Crew[object](check=execution.check, deadline=execution.deadline) as crew:
        stream = _Stream(execution, opened, key, crew, keep)
        stream.write(manifest.head_line(run, bucket))
        cursor = Cursor()
        while not cursor.is_done:
            page, cursor = deps.db.run_session(
                lambda session, at=cursor: manifest.page_of_entries(  # type: ignore[misc]
                    session, run, at, limit=PAGE_ENTRIES
                ),
                read_only=True,
            )
            whole = [entry for entry in page if not entry.lacks]
            entries += len(whole)
            lacking += len(page) - len(whole)
            size += sum(entry.size for entry in whole)
            stream.write(b"".join(entry.line() for entry in page))
            failpoint("backup.after_entries")
        stream.write(manifest.tail_line(entries=entries, size=size, lacking=lacking))
        stream.finish()
    proof = verify(
        opened,
        key,
        size=stream.size,
        sha256=stream.sha256,
        check=execution.check,
        deadline=execution.deadline,
    )
    return Written(content_id, stream.sha256, stream.size, proof.etag, entries, lacking)


class _Stream:
    """Bytes of unknown length on their way to one key: one put, or parts as they fill."""

    def __init__(
        self,
        execution: Execution,
        opened: OpenChannel,
        key: str,
        crew: Crew[object],
        keep: Callable[[str], None],
    ) -> None:
        self._execution, self._opened, self._key = execution, opened, key
        self._crew, self._keep = crew, keep
        self._buffer = bytearray()
        self._digest = hashlib.sha256()
        self._upload_id = ""
        self._parts: list[Part] = []
        self.size = 0

    @property
    def sha256(self) -> str:
        """The hash of all that was written."""
        return self._digest.hexdigest()

    def write(self, data: bytes) -> None:
        """Take bytes; sends a part when one is full."""
        self._digest.update(data)
        self.size += len(data)
        self._buffer += data
        while len(self._buffer) > self._opened.part_bytes:
            self._send_part(self._opened.part_bytes)

    def finish(self) -> None:
        """Send what is left and make the object."""
        channel, deadline = self._opened.channel, self._execution.deadline
        if not self._upload_id:
            body = Body(bytes(self._buffer))
            self._crew.run(
                lambda: channel.put(
                    self._key,
                    body,
                    sha256=self.sha256,
                    if_absent=channel.capabilities.conditional_put,
                    deadline=deadline,
                )
            )
            return
        self._send_part(len(self._buffer))
        self._crew.run(
            lambda: channel.complete_upload(
                self._key, self._upload_id, self._parts, deadline=deadline
            )
        )

    def _send_part(self, length: int) -> None:
        channel, deadline = self._opened.channel, self._execution.deadline
        if not self._upload_id:
            self._upload_id = str(
                self._crew.run(lambda: channel.create_upload(self._key, deadline=deadline))
            )
            self._keep(self._upload_id)
        data = bytes(self._buffer[:length])
        number = len(self._parts) + 1
        offset = self.size - len(self._buffer)
        part = self._crew.run(
            lambda: channel.put_part(
                self._key, self._upload_id, number, Body(data), offset=offset, deadline=deadline
            )
        )
        self._parts.append(cast(Part, part))
        del self._buffer[:length]


class _RunCommit:
    """The run complete, its manifest named, its pruning enqueued, the task completed."""

    def __init__(self, run_id: int, written: Written, counts: dict[str, Any], deps: Deps) -> None:
        self._run_id, self._written, self._counts, self._deps = run_id, written, counts, deps

    def lock(self, session: Session) -> None:
        """Lock the manifest's intent and the run."""
        lock_content_ids(session, [self._written.content_id])
        lock_run(session, self._run_id)

    def apply(self, tx: Completion) -> None:
        """Write. Raises SupersededError, and IntentLost when a sweep has taken the manifest."""
        session, written = tx.session, self._written
        run = session.get(BackupRun, self._run_id)
        if run is None or run.state != BackupRunState.OPEN:
            raise SupersededError("the run is over", run_id=self._run_id)
        if has_open_items(session, run.id):
            raise TransientError("an item was opened again while the manifest was written")
        content = lock_content_ids(session, [written.content_id]).get(written.content_id)
        if content is None or content.state != BackupContentState.INTENT:
            raise IntentLost("a sweep has taken the manifest", run_id=run.id)
        store_content(content, etag=written.etag)
        content.sha256, content.size_bytes = written.sha256, written.size
        run.state = BackupRunState.COMPLETE
        run.manifest_id, run.manifest_sha256 = content.id, written.sha256
        run.counts = {
            **self._counts,
            "entries": written.entries,
            "lacking": written.lacking,
            "manifest_bytes": written.size,
        }
        run.pins_until, run.ended_at = None, utc_clock()
        session.flush()
        bucket = session.get(Bucket, run.bucket_id)
        if policy_of(bucket) is not None:
            enqueue_prune(
                session,
                self._deps.catalogue,
                tenant_id=run.tenant_id,
                bucket_id=run.bucket_id,
                target=run.target,
            )
        tx.result = {"run_id": run.id, **shown(run.counts)}
