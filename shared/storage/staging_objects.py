"""Staging on an object store: a small body is one put, a larger one a multipart upload as it comes.

Nothing is named before it is complete. Each key tells which process writes it, so that a sweep
can tell the upload of a process that is gone from one that is under way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait

import structlog

from shared.core.clock import Deadline
from shared.core.errors import BloxError
from shared.core.failpoints import failpoint
from shared.core.ids import node_name
from shared.storage.body import CHUNK_BYTES, Body
from shared.storage.channel import Channel, OpenUpload, Part
from shared.storage.errors import ChannelUnavailable, ObjectMissing
from shared.storage.keys import fresh_key
from shared.storage.progress import Plan
from shared.storage.spec import S3_LEAST_PART_BYTES
from shared.storage.staging_memory import Memory, StagingBusy
from shared.storage.staging_senders import send_apart
from shared.storage.staging_writer import Expected, Staged, StagingWriter

__all__ = ["ObjectGround", "ObjectWriter"]

#: Bytes of all bodies that one process holds in memory while they come.
MEMORY_BYTES = 128 * 1024 * 1024
#: A body may be under way for this long; nobody goes on with an older upload.
BODY_SECONDS = 86_400.0
#: Seconds that one part, or the end of a body, may take.
CALL_SECONDS = 60.0
#: Seconds that a copy into or out of the trash may take.
_COPY_SECONDS = 600.0
#: Seconds that a thread waits for memory, or for a part that is being sent.
_WAIT_SECONDS = 2 * CALL_SECONDS
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
    ) -> None:
        own = node_name()
        self._channel = channel
        self._node = node or (lambda: own)
        self._part_bytes = part_bytes
        self._memory = Memory(memory_bytes)

    def writer(self, prefix: str, expected: Expected, *, reserve_bytes: int) -> StagingWriter:
        """See Ground.writer. Raises StagingBusy when too many bodies wait for memory already."""
        known = expected.size if expected.size is not None else expected.max_size
        part_bytes = Plan.of(known or 0, self._part_bytes).part_bytes
        key = f"{fresh_key(prefix)}-{_mark(self._node())}"
        return ObjectWriter(
            self._channel, key, expected, part_bytes=part_bytes, memory=self._memory
        )

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
    body takes no memory of the others: whoever has it, has it whole.
    """

    def __init__(
        self,
        channel: Channel,
        key: str,
        expected: Expected,
        *,
        part_bytes: int,
        memory: Memory,
    ) -> None:
        super().__init__(key, expected)
        self._channel = channel
        self._part_bytes = part_bytes
        is_small = expected.size is not None and expected.size <= SMALL_BYTES
        self._share = None if is_small else memory.share(on_evicted=self._forget)
        self._buffer = bytearray()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._upload_id: str | None = None
        self._parts: list[Part] = []
        self._step: Future[None] | None = None
        self._until = Deadline(BODY_SECONDS)
        #: What the last part has taken of the memory.
        self._taken = 0
        self._is_over = False

    def waits_for(self, count: int = CHUNK_BYTES) -> Future[None] | None:
        """See StagingWriter.waits_for: the part that is being sent, or memory for the next bytes.

        Raises BodyTooSlow when the body was ended for others.
        """
        step = self._step
        is_full = len(self._buffer) + count > self._part_bytes
        if is_full and step is not None and not step.done():
            return step
        return None if self._share is None else self._share.room(len(self._buffer), count)

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """See StagingWriter.write. Blocks where `waits_for` told to wait and nobody did."""
        self._demand_room(len(chunk))
        if self._step is not None and self._step.done():
            self._settle()
        view = memoryview(chunk)
        for start in range(0, len(view), CHUNK_BYTES):
            piece = view[start : start + CHUNK_BYTES]
            while (future := self.waits_for(len(piece))) is not None:
                if not wait([future], timeout=_WAIT_SECONDS).done:
                    raise StagingBusy(channel=self._channel.name)
            self._add(piece)

    def _add(self, view: memoryview) -> None:
        while view:
            if len(self._buffer) >= self._part_bytes:
                self._send()
            piece = view[: self._part_bytes - len(self._buffer)]
            if self._share is not None:
                self._share.cover(len(self._buffer) + len(piece))
            self._sha256.update(piece)
            self._buffer += piece
            view = view[len(piece) :]
            self._written += len(piece)

    def _send(self) -> None:
        """Let a thread send the full part."""
        self._settle()
        taken = self._take_out()
        buffer, self._buffer = self._buffer, bytearray()

        def send(part: bytearray) -> None:
            try:
                self._send_part(part)
            finally:
                self._give_back(taken)

        self._step = send_apart(send, buffer)

    def _take_out(self) -> int:
        """See that nobody ends the body for the memory of a part that is on its way."""
        return 0 if self._share is None else self._share.send()

    def _give_back(self, taken: int) -> None:
        if self._share is not None:
            self._share.sent(taken)

    def _forget(self) -> None:
        """Drop what was ended for others; the next call tells whoever writes."""
        self._buffer = bytearray()

    def _send_part(self, buffer: bytearray) -> None:
        if self._until.expired():
            raise ChannelUnavailable("the body took too long", channel=self._channel.name)
        deadline = self._until.within(CALL_SECONDS)
        if self._upload_id is None:
            self._upload_id = self._channel.create_upload(self._key, deadline=deadline)
        self._md5.update(buffer)
        number = len(self._parts) + 1
        part = self._channel.put_part(
            self._key,
            self._upload_id,
            number,
            Body(buffer),
            offset=(number - 1) * self._part_bytes,
            deadline=deadline,
        )
        self._parts.append(part)

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
        self._taken = self._take_out()
        self._demand("size", self._expected.size, self._written)
        sha256 = self._sha256.hexdigest()
        self._demand("sha256", self._expected.sha256, sha256)
        if self._upload_id is None:
            self._md5.update(self._buffer)
        elif self._buffer:
            self._send_part(self._buffer)
        md5 = self._md5.hexdigest()
        self._demand("md5", self._expected.md5, md5)
        failpoint("storage.staging")
        deadline = self._until.within(CALL_SECONDS)
        if self._upload_id is None:
            body = Body(self._buffer)
            stored = self._channel.put(self._key, body, sha256=sha256, deadline=deadline)
        else:
            stored = self._channel.complete_upload(
                self._key, self._upload_id, self._parts, deadline=deadline
            )
        if stored.size != self._written:
            raise ChannelUnavailable("staging kept another size", channel=self._channel.name)
        return Staged(key=self._key, size=self._written, sha256=sha256, md5=md5)

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
        self._buffer = bytearray()
        if self._share is not None:
            self._share.close()
        self._give_back(self._taken)
        self._taken = 0
