"""One location's way from its intent to proven bytes, for every queue that fills a channel.

Whatever row names the key (`IntentRows`), an execution goes on with it, keeps the id of its
multipart upload there, and lets go of it before that upload is aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from sqlalchemy.orm import Session

from shared.catalog import fenced, intents
from shared.core.failpoints import failpoint
from shared.outbox.db import Database
from shared.storage.channel import Remote
from shared.storage.errors import ChannelError
from shared.storage.progress import Progress
from shared.storage.registry import OpenChannel
from shared.storage.source import Source
from shared.storage.transfer import Transferred, transfer

if TYPE_CHECKING:
    from shared.outbox.execution import Execution

#: Seconds that a clean-up call may take whose failure is harmless.
TIDY_SECONDS = 5.0

_log = structlog.get_logger("catalog.sending")


class IntentRows(Protocol):
    """The rows that name a fresh key before its first byte. `LocationRows` are locations."""

    def lock(self, session: Session) -> object:
        """Lock the domain rows that `begin` asks, before the task's row."""

    def begin(self, session: Session, *, channel: str, execution: Execution) -> tuple[int, str]:
        """Write an intent under a fresh key; returns its id and the key.

        Raises SupersededError when nobody waits for the bytes any more.
        """

    def adopt(self, session: Session, row_id: int, *, execution: Execution) -> bool:
        """Take over the intent of an earlier execution of this task; False when it is none now."""

    def keep_upload_id(self, session: Session, row_id: int, upload_id: str) -> None:
        """Keep the id of an open multipart upload beside its key."""


class Sender:
    """What one execution does with its intents. `points` begins the names of its failpoints."""

    def __init__(
        self, execution: Execution, db: Database, rows: IntentRows, *, points: str
    ) -> None:
        self._execution = execution
        self._db = db
        self._rows = rows
        self._points = points

    def begin(self, channel: str) -> tuple[int, str]:
        """Write an intent, fenced; returns the row's id and the fresh key."""
        begun = fenced.fenced(
            self._execution,
            self._db,
            lock=self._rows.lock,
            body=lambda session: self._rows.begin(
                session, channel=channel, execution=self._execution
            ),
        )
        failpoint(f"{self._points}.after_intent")
        return begun

    def adopt(self, row_id: int, *, channel: str, progress: Mapping[str, Any] | None) -> bool:
        """Go on with the upload that an earlier execution left open, under the same key."""
        adopted = fenced.fenced(
            self._execution,
            self._db,
            lock=fenced.no_lock,
            body=lambda session: self._rows.adopt(session, row_id, execution=self._execution),
        )
        if adopted:
            self._execution.emit("resumed", {"channel": channel, **done(progress)})
        return adopted

    def send(
        self,
        source: Source,
        opened: OpenChannel,
        *,
        row_id: int,
        key: str,
        size: int,
        sha256: str,
        progress: Mapping[str, Any] | None,
        keep: Callable[[dict[str, Any]], None],
        remote: Remote | None = None,
        md5: str | None = None,
    ) -> Transferred:
        """Transfer the bytes and prove them; goes on from the parts of `progress`.

        `keep` writes the new progress to the task's checkpoint. `remote`, `md5` and what is raised:
        see `transfer`.
        """
        resume = Progress.from_json(progress) if progress else None
        known = {resume.upload_id} if resume else set()

        def save(reached: Progress) -> None:
            if reached.upload_id not in known:
                known.add(reached.upload_id)
                self._keep_upload_id(row_id, reached.upload_id)
                failpoint(f"{self._points}.after_upload_id")
            keep(reached.to_json())
            if reached.parts_done:
                self._execution.emit("part", {"channel": opened.name, **done(reached.to_json())})
                failpoint(f"{self._points}.after_part")

        sent = transfer(
            source,
            opened,
            key,
            size=size,
            sha256=sha256,
            resume=resume,
            save=save,
            check=self._execution.check,
            deadline=self._execution.deadline,
            remote=remote,
            md5=md5,
        )
        failpoint(f"{self._points}.after_bytes")
        return sent

    def abort(self, opened: OpenChannel, key: str, progress: Mapping[str, Any] | None) -> None:
        """Abort an upload that the checkpoint does not name any more: no other goes on with it."""
        if not progress:
            return
        deadline = self._execution.deadline.within(TIDY_SECONDS)
        try:
            opened.channel.abort_upload(key, str(progress["upload_id"]), deadline=deadline)
        except ChannelError as harmless:
            # The sweep aborts it: the row keeps the upload's id.
            _log.info("abort_left_to_sweep", channel=opened.name, error=str(harmless))

    def _keep_upload_id(self, row_id: int, upload_id: str) -> None:
        fenced.fenced(
            self._execution,
            self._db,
            lock=fenced.no_lock,
            body=lambda session: self._rows.keep_upload_id(session, row_id, upload_id),
        )


class LocationRows:
    """Locations as intents. Subclasses say what waits for the bytes."""

    def adopt(self, session: Session, row_id: int, *, execution: Execution) -> bool:
        """See IntentRows.adopt."""
        return intents.adopt(session, row_id, execution=execution)

    def keep_upload_id(self, session: Session, row_id: int, upload_id: str) -> None:
        """See IntentRows.keep_upload_id."""
        intents.keep_upload_id(session, row_id, upload_id)


def done(progress: Mapping[str, Any] | None) -> dict[str, int]:
    """Return how far a transfer has come, as events tell it."""
    progress = progress or {}
    return {
        "parts_done": int(progress.get("parts_done", 0)),
        "bytes_done": int(progress.get("bytes_done", 0)),
    }
