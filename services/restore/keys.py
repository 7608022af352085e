"""Keys from a manifest, line by line: by the policy kept, or put back as new versions.

A new version and the cursor behind its line are one commit, so that a death in between neither
skips a key nor restores it twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import structlog
from sqlalchemy.orm import Session

from services.restore.deps import Deps
from services.restore.fetching import fetch
from services.restore.proving import is_right
from shared.catalog import fenced
from shared.catalog.backups.damage import note_damage, note_right
from shared.catalog.backups.held import held_copies
from shared.catalog.backups.manifest import PIECE_BYTES, Entry, whole_lines
from shared.catalog.locking import lock_tasks
from shared.catalog.models import Restore
from shared.catalog.restores.keys import Decision, KeyCommit, Outcome, decide, is_stored_here
from shared.catalog.restores.manifests import (
    HeldManifest,
    choose_older,
    find_manifest,
    lock_older,
)
from shared.catalog.restores.progress import Result, note_results
from shared.catalog.restores.runs import Policy, lock_restore
from shared.core.clock import Deadline, monotonic
from shared.core.errors import BloxError, NotFoundError, PreconditionError, RequestError
from shared.core.failpoints import failpoint
from shared.core.outcomes import Fail
from shared.outbox import Execution
from shared.storage.awake import awake
from shared.storage.errors import (
    SourceUnavailable,
)

#: A key that changes again and again while it is decided on.
LOOKS = 5
_TIDY_SECONDS = 10.0

_log = structlog.get_logger("restore")


class KeyRestore:
    """One execution of one restore."""

    def __init__(self, execution: Execution, restore: Restore, deps: Deps) -> None:
        self._execution, self._deps = execution, deps
        self._id, self._bucket_id = restore.id, restore.bucket_id
        self._tenant_id = restore.tenant_id
        self._prefix = restore.prefix
        self._policy = cast("Policy", restore.policy)
        self._is_dry = bool(restore.is_dry_run)
        self._run_id = restore.run_id
        self._begun_at = restore.created_at
        self._offset = int((restore.cursor or {}).get("offset", 0))
        # Positions of a manifest that had to be left come before those of the present one.
        self._base = int((restore.cursor or {}).get("base", 0))
        self._pending: list[Result] = []
        self._written_at = monotonic()

    def run(self) -> Fail | None:
        """Go through the manifest from the cursor on; a Fail when there is none to read."""
        manifest = self._manifest()
        if isinstance(manifest, Fail):
            return manifest
        failpoint("restore.after_manifest")
        while self._offset < manifest.size:
            for offset, document in self._look(manifest):
                self._execution.check()
                if "format" not in document and "end" not in document:
                    entry = Entry.read(document)
                    if entry.key.startswith(self._prefix):
                        self._deal_with(entry, offset)
                        self._offset = offset
                        self._write_if_due()
                self._offset = offset
        self._flush()
        return None

    def _manifest(self) -> HeldManifest | Fail:
        """Return the proven manifest; only a damaged one is left for the next older."""
        db = self._deps.db
        run_id = self._run_id or 0
        found = db.run_session(lambda session: find_manifest(session, run_id), read_only=True)
        if found is None:
            return Fail("backup_gone", "the backup is not there any more")
        # Two looks: bytes are also damaged on their way.
        while not (self._is_proven(found) or self._is_proven(found)):
            content_id = found.content_id
            db.run_session(partial(note_damage, content_id=content_id, detail="manifest"))
            _log.error("manifest_unreadable", restore_id=self._id, run_id=self._run_id)
            found = fenced.fenced(
                self._execution,
                db,
                lock=partial(lock_older, restore_id=self._id),
                body=partial(choose_older, restore_id=self._id),
            )
            if found is None:
                return Fail("unrecoverable", "no complete manifest can be read")
            self._base += self._offset
            self._run_id, self._offset = found.run_id, 0
        if found.is_damaged:
            db.run_session(partial(note_right, content_id=found.content_id))
        return found

    def _is_proven(self, manifest: HeldManifest) -> bool:
        found = self._deps.channels.find(manifest.target)
        if found is None:
            raise SourceUnavailable("the backup target is gone", channel=manifest.target)
        return is_right(
            self._execution,
            self._deps,
            found[0],
            manifest.key,
            size=manifest.size,
            sha256=manifest.sha256,
        )

    def _look(self, manifest: HeldManifest) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (the offset behind it, document) for the whole lines of one look."""
        found = self._deps.channels.find(manifest.target)
        if found is None:
            raise SourceUnavailable("the backup target is gone", channel=manifest.target)
        opened, start, deadline = found[0], self._offset, self._execution.deadline
        length = min(PIECE_BYTES, manifest.size - start)

        def read() -> bytes:
            with opened.channel.get(
                manifest.key, start=start, length=length, deadline=deadline
            ) as chunks:
                return b"".join(chunks)

        with self._deps.slots.reading(self._execution, opened):
            data = awake(read, check=self._execution.check, deadline=deadline)
        yield from whole_lines(data, offset=self._offset)

    def _deal_with(self, entry: Entry, offset: int) -> None:
        for _ in range(LOOKS):
            decision = self._decide(entry)
            if decision.outcome != "restored" or self._is_dry:
                self._note(entry, offset, decision.outcome, decision.version_id)
                return
            try:
                self._put_back(entry, offset, decision)
                return
            except PreconditionError:
                continue  # Somebody has written the key meanwhile: the policy decides anew.
            except RequestError as error:
                self._note(entry, offset, "refused", detail=f"{error.code}: {error}")
                return
        self._note(entry, offset, "refused", detail="the key is written again and again")

    def _decide(self, entry: Entry) -> Decision:
        def look(session: Session) -> Decision:
            decision = decide(session, self._bucket_id, entry, self._policy)
            if decision.outcome == "restored" and self._is_dry:
                facts = (self._tenant_id, entry.sha256, entry.size)
                if not held_copies(session, *facts) and not is_stored_here(session, *facts):
                    return Decision("unrecoverable")
            return decision

        return self._deps.db.run_session(look, read_only=True)

    def _put_back(self, entry: Entry, offset: int, decision: Decision) -> None:
        """Write the version: from content that is stored, else from the target's bytes."""
        try:
            self._commit(entry, offset, decision, staging_key=None)
            return
        except NotFoundError as error:
            if error.code != "content_unknown":
                raise
        staging_key = fetch(self._execution, self._deps, self._tenant_id, entry)
        if staging_key is None:
            _log.error("key_unrecoverable", restore_id=self._id, sha256=entry.sha256)
            detail = "no target has the bytes"
            if entry.lacks:
                detail = f"the backup lacks them ({entry.lacks}), and no target has the bytes"
            self._note(entry, offset, "unrecoverable", detail=detail)
            return
        failpoint("restore.after_staged")
        try:
            self._commit(entry, offset, decision, staging_key=staging_key)
        except RequestError:
            # Nothing was written: no row names it.
            self._discard([staging_key])
            raise

    def _commit(
        self, entry: Entry, offset: int, decision: Decision, *, staging_key: str | None
    ) -> None:
        commit = KeyCommit(
            self._deps.catalogue, self._bucket_id, entry, decision, staging_key=staging_key
        )
        task_id = self._execution.task.id

        def lock(session: Session) -> None:
            older = commit.lock(session)
            lock_restore(session, self._id)
            lock_tasks(session, [task_id, *older])

        def write(session: Session) -> list[str]:
            answer = commit.apply(session)
            result = Result(
                position=self._base + offset,
                key=entry.key,
                outcome="restored",
                size=entry.size,
                version_id=answer.version_id,
            )
            self._note_all(session, [*self._pending, result], offset)
            return [key for key in answer.released if key]

        failpoint("restore.before_key")
        released = fenced.fenced(self._execution, self._deps.db, lock=lock, body=write)
        self._pending, self._offset, self._written_at = [], offset, monotonic()
        failpoint("restore.after_key")
        self._discard(released)

    def _note(
        self,
        entry: Entry,
        offset: int,
        outcome: Outcome,
        version_id: int | None = None,
        *,
        detail: str = "",
    ) -> None:
        self._pending.append(
            Result(
                position=self._base + offset,
                key=entry.key,
                outcome=outcome,
                size=entry.size,
                version_id=version_id,
                detail=detail,
            )
        )

    def _write_if_due(self) -> None:
        is_full = len(self._pending) >= self._deps.page_entries
        if is_full or monotonic() - self._written_at > self._deps.page_seconds:
            self._flush()

    def _flush(self) -> None:
        """Write what was decided and not put back, with the cursor."""
        counts = fenced.fenced(
            self._execution,
            self._deps.db,
            lock=lambda session: lock_restore(session, self._id),
            body=lambda session: self._note_all(session, self._pending, self._offset),
        )
        self._pending, self._written_at = [], monotonic()
        failpoint("restore.after_page")
        self._execution.emit("progress", {"restore_id": self._id, **counts})

    def _note_all(self, session: Session, results: list[Result], offset: int) -> dict[str, int]:
        return note_results(
            session,
            self._id,
            results,
            cursor={"offset": offset, "base": self._base},
            keeps_items=not self._is_dry,
        )

    def _discard(self, keys: list[str]) -> None:
        for key in keys:
            try:
                self._deps.staging.remove(key, deadline=Deadline(_TIDY_SECONDS))
            except BloxError as error:
                _log.info("staging_left_to_cleanup", key=key, error=str(error))
