"""Staging in a directory: a body is written as it comes and gets its key by a rename."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

from shared.core.clock import Deadline
from shared.core.failpoints import failpoint
from shared.storage import tree
from shared.storage.body import CHUNK_BYTES
from shared.storage.channel import OpenUpload
from shared.storage.errors import ChannelFull
from shared.storage.file import FileChannel
from shared.storage.keys import check_key, fresh_key
from shared.storage.md5 import Md5Follower, Md5Helpers
from shared.storage.staging_writer import Expected, Staged, StagingWriter

#: Bytes between two looks at the room that must stay free.
LOOK_BYTES = 32 * 1024 * 1024


class FileGround:
    """See `Ground`."""

    def __init__(self, channel: FileChannel) -> None:
        self._channel = channel
        self._md5_helpers = Md5Helpers()

    def writer(self, prefix: str, expected: Expected, *, reserve_bytes: int) -> StagingWriter:
        """See Ground.writer."""
        free = self._channel.space()[0] - reserve_bytes
        if free <= (expected.size or 0):
            name = self._channel.name
            raise ChannelFull("staging is full", channel=name, free_bytes=max(0, free))
        return FileWriter(
            self._channel,
            fresh_key(prefix),
            expected,
            md5_helpers=self._md5_helpers,
            reserve_bytes=reserve_bytes,
        )

    def trash(self, key: str, trash_key: str) -> bool:
        """See Ground.trash. A rename that makes the file's time now."""
        return self._channel.move(key, trash_key, touch=True)

    def restore(self, trash_key: str, key: str) -> bool:
        """See Ground.restore."""
        return self._channel.move(trash_key, key)

    def space(self) -> tuple[int, int]:
        """See Ground.space."""
        return self._channel.space()

    def open_uploads(self, prefix: str, *, deadline: Deadline) -> Iterator[OpenUpload]:
        """See Ground.open_uploads. Of files being joined; others are found by `sweep_partial`."""
        for upload in self._channel.list_uploads(deadline=deadline):
            if upload.key.startswith(f"{prefix}/"):
                yield upload

    def wrote(self, key: str, nodes: frozenset[str]) -> bool:
        """See Ground.wrote."""
        return False


class FileWriter(StagingWriter):
    """See StagingWriter. The file lies outside of all keys until it is finished."""

    def __init__(
        self,
        channel: FileChannel,
        key: str,
        expected: Expected,
        *,
        md5_helpers: Md5Helpers,
        reserve_bytes: int = 0,
    ) -> None:
        super().__init__(key, expected)
        self._channel = channel
        self._reserve_bytes, self._look_at = reserve_bytes, LOOK_BYTES
        self._stack = ExitStack()
        with channel.root.mapped("stage", key):
            self._area, self._name, self._file = self._stack.enter_context(channel.root.temporary())
        self._md5 = Md5Follower(self._file, md5_helpers)
        # Closed in reverse order: nobody may read the file once its descriptor is closed.
        self._stack.callback(self._md5.settle)

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """See StagingWriter.write."""
        count = len(chunk)
        self._demand_room(count)
        with self._channel.root.mapped("stage", self._key):
            if count <= CHUNK_BYTES:
                self._sha256.update(chunk)
                if os.write(self._file, chunk) != count:
                    self._write_rest(chunk)
            else:
                for start in range(0, count, CHUNK_BYTES):
                    piece = memoryview(chunk)[start : start + CHUNK_BYTES]
                    self._sha256.update(piece)
                    tree.write_all(self._file, piece)
        self._written += count
        self._md5.advance(self._written)
        if self._written >= self._look_at:
            self._look_for_room()

    def _look_for_room(self) -> None:
        """Keep the reserve: others write at the same time, and not every size is declared."""
        self._look_at = self._written + LOOK_BYTES
        with self._channel.root.mapped("stage", self._key):
            facts = os.fstatvfs(self._file)
        free = facts.f_bavail * facts.f_frsize
        if free < self._reserve_bytes:
            raise ChannelFull("staging is full", channel=self._channel.name, free_bytes=free)

    def _write_rest(self, chunk: bytes | bytearray | memoryview) -> None:
        """Write what a short write has left over."""
        done = os.lseek(self._file, 0, os.SEEK_CUR) - self._written
        tree.write_all(self._file, memoryview(chunk)[done:])

    def finish(self) -> Staged:
        """See StagingWriter.finish."""
        with self._stack, self._channel.root.mapped("stage", self._key):
            self._demand("size", self._expected.size, self._written)
            sha256 = self._sha256.hexdigest()
            self._demand("sha256", self._expected.sha256, sha256)
            self._md5.finish_soon(self._written)
            if self._expected.md5 is None:
                os.fsync(self._file)
                md5 = self._md5.finish(self._written)
            else:
                md5 = self._md5.finish(self._written)
                self._demand("md5", self._expected.md5, md5)
                os.fsync(self._file)
            failpoint("storage.staging")
            self._channel.root.publish(self._area, self._name, check_key(self._key))
        return Staged(key=self._key, size=self._written, sha256=sha256, md5=md5)

    def abort(self) -> None:
        """See StagingWriter.abort."""
        self._stack.close()
