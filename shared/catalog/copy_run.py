"""One execution's copying: sources in turn, one target, one intent at a time, the checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from shared.catalog.channel_slots import resource_of
from shared.catalog.copy_job import Copied, CopyDeps, CopyJob, Damage, Method, NoSource, SourceCopy
from shared.catalog.sending import IntentRows, Sender, done
from shared.core.errors import ResourceBusy
from shared.core.failpoints import failpoint
from shared.storage.channel import Remote
from shared.storage.errors import BreakerOpen, ChannelError, SourceError, SourceUnavailable
from shared.storage.registry import OpenChannel
from shared.storage.source import ChannelSource
from shared.storage.transfer import Transferred

if TYPE_CHECKING:
    from shared.outbox.execution import Execution

_MD5 = re.compile(r"[0-9a-f]{32}\Z")

_log = structlog.get_logger("catalog.copying")


@dataclass(frozen=True, slots=True)
class _Begun:
    """The intent that the checkpoint names, and how far its transfer has come."""

    row_id: int
    key: str
    progress: dict[str, Any] | None


class CopyRun:
    """One execution of `copy_blob`."""

    def __init__(
        self,
        execution: Execution,
        deps: CopyDeps,
        job: CopyJob,
        opened: OpenChannel,
        rows: IntentRows,
    ) -> None:
        self._execution = execution
        self._deps = deps
        self._job = job
        self._opened = opened
        self._sender = Sender(execution, deps.db, rows, points=deps.points)
        saved = (execution.task.checkpoint or {}).get("current")
        #: What an earlier execution has left; taken over once.
        self._left = _Begun(**saved["begun"]) if saved and saved["channel"] == opened.name else None
        self._begun: _Begun | None = None
        self._resumed = False

    def run(self) -> Copied:
        """Try the sources in turn."""
        failed: dict[str, str] = {}
        damaged = 0
        silent: ResourceBusy | None = None
        for source, opened in self._sources(failed):
            self._execution.check()
            try:
                with self._deps.slots.reading(self._execution, opened):
                    return self._from(source, opened)
            except ResourceBusy as busy:
                if busy.resource != resource_of(source.channel):
                    raise
                silent = busy
            except SourceUnavailable as error:
                failed[source.channel] = str(error.facts.get("reason", error))
            except SourceError as error:
                damaged += 1
                failed[source.channel] = f"{error.code}: {error}"
                self._note_damage(source, error)
            except BreakerOpen:
                raise
            except ChannelError as error:
                self._note_failure(error)
                raise
        if silent is not None:
            raise silent
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        if damaged == len(self._job.sources):
            raise NoSource(f"no copy can be read: {reasons or 'there is none'}")
        raise SourceUnavailable(f"no copy can be read now: {reasons}")

    def _sources(self, failed: dict[str, str]) -> Iterator[tuple[SourceCopy, OpenChannel]]:
        """Yield the sources that may be asked now, those of the target's channel first."""
        waits: list[float] = []
        usable: list[tuple[SourceCopy, OpenChannel]] = []
        for source in self._job.sources:
            found = self._deps.channels.find(source.channel)
            if found is None:
                failed[source.channel] = "the channel is gone"
            elif not found[0].read_breaker.ready():
                failed[source.channel] = "the channel is left alone"
                waits.append(found[0].read_breaker.retry_after_seconds())
            else:
                usable.append((source, found[0]))
        if waits and not usable:
            raise BreakerOpen(
                "all sources are left alone for a while", retry_after_seconds=min(waits)
            )
        yield from sorted(usable, key=lambda one: one[0].channel != self._opened.name)

    def _from(self, source: SourceCopy, origin: OpenChannel) -> Copied:
        remote = self._remote(source, origin)
        if remote is not None:
            try:
                return self._send(source, origin, remote)
            except BreakerOpen:
                raise
            except ChannelError as error:
                # Under another key then: the copy may still come, and nobody would know of what.
                _log.info(
                    "server_copy_failed",
                    channel=self._opened.name,
                    source=source.channel,
                    code=error.code,
                    error=str(error),
                )
                self._let_go()
        return self._send(source, origin, None)

    def _send(self, source: SourceCopy, origin: OpenChannel, remote: Remote | None) -> Copied:
        begun = self._begin()
        sent = self._sender.send(
            ChannelSource(origin.channel, source.key),
            self._opened,
            row_id=begun.row_id,
            key=begun.key,
            size=self._job.size_bytes,
            sha256=self._job.sha256,
            progress=begun.progress,
            keep=self._progressed,
            remote=remote,
            md5=_md5(source, origin),
        )
        method: Method = "resumed" if self._resumed else "stream"
        return self._copied(begun, sent, source, method if remote is None else "server")

    def _remote(self, source: SourceCopy, origin: OpenChannel) -> Remote | None:
        """Return how the target's provider names the source, None where it does not know it."""
        named = origin.channel.remote(source.key)
        own = self._opened.channel.remote(source.key)
        return named if named.domain == own.domain else None

    def _copied(
        self, begun: _Begun, sent: Transferred, source: SourceCopy, method: Method
    ) -> Copied:
        return Copied(
            location_id=begun.row_id,
            key=begun.key,
            etag=sent.etag,
            bytes_sent=sent.bytes_sent,
            method=method,
            source=source,
        )

    def _begin(self) -> _Begun:
        """Go on with the intent that there is, or write one; the checkpoint names it."""
        left, self._left = self._left, None
        if left is not None and left.progress:
            adopted = self._sender.adopt(
                left.row_id, channel=self._opened.name, progress=left.progress
            )
            if adopted:
                self._begun, self._resumed = left, True
        if self._begun is None or not self._begun.progress:
            # A single put may have begun under the last key: it is never used twice.
            row_id, key = self._sender.begin(self._opened.name)
            self._keep(_Begun(row_id, key, None))
            failpoint(f"{self._deps.points}.after_checkpoint")
        begun = self._begun
        if begun is None:
            raise AssertionError("a copy has begun")
        return begun

    def _progressed(self, progress: dict[str, Any]) -> None:
        if self._begun is None:
            raise AssertionError("a copy has begun")
        self._keep(_Begun(self._begun.row_id, self._begun.key, progress))

    def _keep(self, begun: _Begun | None) -> None:
        """Keep where the copy stands in the task's row, and only then go by it."""
        data: dict[str, Any] = {"current": None}
        if begun is not None:
            named = {"row_id": begun.row_id, "key": begun.key, "progress": begun.progress}
            data["current"] = {"channel": self._opened.name, "begun": named}
        self._execution.checkpoint(data, done(begun.progress if begun else None)["bytes_done"])
        self._begun = begun

    def _note_damage(self, source: SourceCopy, error: SourceError) -> None:
        """Tell of a damaged source; what was made of its bytes is not gone on with."""
        _log.warning(
            "source_damaged",
            task_id=self._execution.task.id,
            blob_id=self._job.blob_id,
            channel=source.channel,
            location_id=source.location_id,
            code=error.code,
            error=str(error),
        )
        self._execution.emit("source_damaged", {"channel": source.channel, "code": error.code})
        if error.code != "source_missing":
            self._let_go()
        self._deps.on_damage(Damage(source, error.code))

    def _note_failure(self, error: ChannelError) -> None:
        """Give the target up for this execution, and its upload with it."""
        _log.warning(
            "target_failed",
            task_id=self._execution.task.id,
            blob_id=self._job.blob_id,
            channel=self._opened.name,
            code=error.code,
            error=str(error),
        )
        self._let_go()
        failpoint(f"{self._deps.points}.after_failure")
        self._execution.emit(
            "channel_failed",
            {"channel": self._opened.name, "code": error.code, "error": str(error)[:500]},
        )

    def _let_go(self) -> None:
        """Let the checkpoint go of the intent first; then no other goes on, and it is aborted."""
        begun = self._begun
        if begun is None:
            return
        self._keep(None)
        self._resumed = False
        self._sender.abort(self._opened, begun.key, begun.progress)


def _md5(source: SourceCopy, origin: OpenChannel) -> str | None:
    """Return the md5 of a copy that was proven under an ETag which is one."""
    is_md5 = origin.channel.capabilities.checksum == "md5" and _MD5.match(source.etag or "")
    return source.etag if is_md5 else None
