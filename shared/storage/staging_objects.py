"""Staging on an object store: a small body is one put, a larger one a multipart upload as it comes.

Nothing is named before it is complete. Each key tells which process writes it, so that a sweep
can tell the upload of a process that is gone from one that is under way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import structlog

from shared.core.clock import Deadline
from shared.core.errors import BloxError
from shared.core.failpoints import failpoint
from shared.core.ids import node_name
from shared.storage.body import CHUNK_BYTES, Body
from shared.storage.channel import Channel, OpenUpload, Stored
from shared.storage.channel import Part as SentPart
from shared.storage.errors import ChannelUnavailable, ObjectMissing
from shared.storage.keys import fresh_key
from shared.storage.progress import Plan
from shared.storage.spec import S3_LEAST_PART_BYTES
from shared.storage.staging_parts import Part, PartSpace, StagingBusy
from shared.storage.staging_senders import send_apart
from shared.storage.staging_writer import Expected, Staged, StagingWriter

__all__ = ["ObjectGround", "ObjectWriter"]

#: Bytes of all bodies that one process holds in memory while they come.
MEMORY_BYTES = 128 * 1024 * 1024
#: Bytes of theirs that it may hold on disk beside it.
DISK_BYTES = 128 * 1024 * 1024
#: A body may be under way for this long; nobody goes on with an older upload.
BODY_SECONDS = 86_400.0
#: Seconds that one part, or the end of a body, may take.
CALL_SECONDS = 60.0
#: Seconds that a copy into or out of the trash may take.
_COPY_SECONDS = 600.0
_MARK_DIGITS = 12
#: Bodies of at most so many bytes are never kept waiting.
SMALL_BYTES = 64 * 1024

_log = structlog.get_logger("storage.staging")


class ObjectGround:
    """See `Ground`. `node` names this process as the outbox's table of processes does."""

    def __init__(
        self,
        channel: Channel,
        *,
        node: Callable[[], str] | None = None,
        part_bytes: int = S3_LEAST_PART_BYTES,
        memory_bytes: int = MEMORY_BYTES,
        disk_bytes: int = DISK_BYTES,
    ) -> None:
        own = node_name()
        self._channel = channel
        self._node = node or (lambda: own)
        self._part_bytes = part_bytes
        self._space = PartSpace(memory_bytes, disk_bytes)

    def writer(self, prefix: str, expected: Expected, *, reserve_bytes: int) -> StagingWriter:
        """See Ground.writer."""
        known = expected.size if expected.size is not None else expected.max_size
        part_bytes = Plan.of(known or 0, self._part_bytes).part_bytes
        key = f"{fresh_key(prefix)}-{_mark(self._node())}"
        return ObjectWriter(self._channel, key, expected, part_bytes=part_bytes, space=self._space)

    def trash(self, key: str, trash_key: str) -> bool:
        """See Ground.trash. A copy first: a death in between leaves both, never neither."""
        deadline = Deadline(_COPY_SECONDS)
        try:
            self._channel.copy(key, trash_key, deadline=deadline)
        except ObjectMissing:
            return False
        failpoint("storage.trashing")
        self._channel.delete(key, deadline=deadline)
        return True

    def restore(self, trash_key: str, key: str) -> bool:
        """See Ground.restore. The copy in the trash stays until a later call finds the other.

        So a `trash` that is still on its way elsewhere cannot remove the last one.
        """
        deadline = Deadline(_COPY_SECONDS)
        if self._channel.head(key, deadline=deadline) is not None:
            self._channel.delete(trash_key, deadline=deadline)
            return True
        try:
            self._channel.copy(trash_key, key, deadline=deadline)
        except ObjectMissing:
            return False
        return True

    def space(self) -> None:
        """See Ground.space. An object store does not tell."""
        return

    def open_uploads(self, prefix: str, *, deadline: Deadline) -> Iterator[OpenUpload]:
        """See Ground.open_uploads."""
        for upload in self._channel.list_uploads(deadline=deadline):
            if upload.key.startswith(f"{prefix}/"):
                yield upload

    def wrote(self, key: str, nodes: frozenset[str]) -> bool:
        """See Ground.wrote."""
        return key.rpartition("-")[2] in {_mark(node) for node in nodes}


def _mark(node: str) -> str:
    return hashlib.sha256(node.encode()).hexdigest()[:_MARK_DIGITS]


class ObjectWriter(StagingWriter):
    """See StagingWriter. Holds what has come of one part, and the part that is being sent.

    One part is sent while the next one fills; their order is that of the MD5 of the whole. A small
    body takes no place of the others: whoever has it, has it whole.
    """

    def __init__(
        self,
        channel: Channel,
        key: str,
        expected: Expected,
        *,
        part_bytes: int,
        space: PartSpace,
    ) -> None:
        super().__init__(key, expected)
        self._channel = channel
        self._part_bytes = part_bytes
        is_small = expected.size is not None and expected.size <= SMALL_BYTES
        self._space = None if is_small else space
        self._part = Part(self._space)
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._upload_id: str | None = None
        self._sent: list[SentPart] = []
        self._step: Future[None] | None = None
        self._until = Deadline(BODY_SECONDS)
        self._is_over = False

    def waits_for(self, count: int = CHUNK_BYTES) -> Future[None] | None:
        """See StagingWriter.waits_for: the part that is being sent, when another is full."""
        step = self._step
        is_full = len(self._part) + count > self._part_bytes
        return step if is_full and step is not None and not step.done() else None

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """See StagingWriter.write. Blocks where `waits_for` told to wait and nobody did.

        Raises StagingBusy when this process holds too much already, BodyTooSlow when the body was
        ended for others.
        """
        self._demand_room(len(chunk))
        if self._step is not None and self._step.done():
            self._settle()
        view = memoryview(chunk)
        while view:
            if len(self._part) >= self._part_bytes:
                self._send()
            piece = view[: self._part_bytes - len(self._part)]
            self._part.append(piece)
            self._sha256.update(piece)
            view = view[len(piece) :]
            self._written += len(piece)

    def _send(self) -> None:
        """Let a thread send the full part, and begin another."""
        self._settle()
        part, self._part = self._part, Part(self._space)
        try:
            self._step = send_apart(self._send_part, part)
        except RuntimeError as error:
            part.close()
            raise StagingBusy("no thread to send a part", reason=str(error)) from error

    def _send_part(self, part: Part) -> None:
        with part.loaded() as buffer:
            if self._until.expired():
                raise ChannelUnavailable("the body took too long", channel=self._channel.name)
            deadline = self._until.within(CALL_SECONDS)
            if self._upload_id is None:
                self._upload_id = self._channel.create_upload(self._key, deadline=deadline)
            self._md5.update(buffer)
            number = len(self._sent) + 1
            sent = self._channel.put_part(
                self._key,
                self._upload_id,
                number,
                Body(buffer),
                offset=(number - 1) * self._part_bytes,
                deadline=deadline,
            )
            self._sent.append(sent)

    def _settle(self) -> None:
        """Wait for the part that is being sent; raises what went wrong with it."""
        step, self._step = self._step, None
        if step is not None:
            step.result()

    def finish(self) -> Staged:
        """See StagingWriter.finish."""
        try:
            staged = self._finish()
        except BaseException:
            self.abort()
            raise
        self._close()
        return staged

    def _finish(self) -> Staged:
        self._settle()
        self._demand("size", self._expected.size, self._written)
        sha256 = self._sha256.hexdigest()
        self._demand("sha256", self._expected.sha256, sha256)
        if self._upload_id is None:
            stored = self._put_whole(sha256)
        else:
            if len(self._part):
                self._send_part(self._part)
            self._demand("md5", self._expected.md5, self._md5.hexdigest())
            failpoint("storage.staging")
            deadline = self._until.within(CALL_SECONDS)
            stored = self._channel.complete_upload(
                self._key, self._upload_id, self._sent, deadline=deadline
            )
        if stored.size != self._written:
            raise ChannelUnavailable("staging kept another size", channel=self._channel.name)
        md5 = self._md5.hexdigest()
        return Staged(key=self._key, size=self._written, sha256=sha256, md5=md5)

    def _put_whole(self, sha256: str) -> Stored:
        with self._part.loaded() as buffer:
            self._md5.update(buffer)
            self._demand("md5", self._expected.md5, self._md5.hexdigest())
            failpoint("storage.staging")
            deadline = self._until.within(CALL_SECONDS)
            return self._channel.put(self._key, Body(buffer), sha256=sha256, deadline=deadline)

    def abort(self) -> None:
        """See StagingWriter.abort. What cannot be dropped now is left to the sweep."""
        if self._is_over:
            return
        try:
            # A part that arrives after the abort would stay for ever on some providers.
            self._settle()
        except BloxError as error:
            _log.info("staging_part_failed", key=self._key, error=str(error))
        finally:
            self._close()
        if self._upload_id is not None:
            try:
                self._channel.abort_upload(
                    self._key, self._upload_id, deadline=Deadline(CALL_SECONDS)
                )
            except BloxError as error:
                _log.info("staging_upload_left_to_sweep", key=self._key, error=str(error))

    def _close(self) -> None:
        self._is_over = True
        self._part.close()
