"""Takes one body piece by piece into staging: hashed and written inline, durable at the end."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from shared.core.errors import InvalidError, TooLargeError
from shared.core.failpoints import failpoint
from shared.storage import tree
from shared.storage.body import CHUNK_BYTES
from shared.storage.errors import ChannelFull
from shared.storage.file import FileChannel
from shared.storage.keys import check_key
from shared.storage.md5 import Md5Follower, Md5Helpers

#: Bytes between two looks at the room that must stay free.
LOOK_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the sender said of a body; None for what it did not say. Digests are hexadecimal."""

    size: int | None = None
    max_size: int | None = None
    sha256: str | None = None
    md5: str | None = None


@dataclass(frozen=True, slots=True)
class Staged:
    """A body that is safely in staging."""

    key: str
    size: int
    sha256: str
    md5: str


class StagingWriter:
    """One body on its way into staging.

    `write` is meant for the event loop: it hashes and writes small pieces at memory speed. `finish`
    and `abort` wait for the disk: call them in a thread. A writer that is neither finished nor
    aborted (a kill) leaves a file outside of all keys, which the sweep removes.
    """

    def __init__(
        self,
        channel: FileChannel,
        key: str,
        expected: Expected,
        *,
        md5_helpers: Md5Helpers,
        reserve_bytes: int = 0,
    ) -> None:
        self._channel = channel
        self._key = key
        self._expected = expected
        self._sha256 = hashlib.sha256()
        self._written = 0
        self._reserve_bytes, self._look_at = reserve_bytes, LOOK_BYTES
        limits = [limit for limit in (expected.size, expected.max_size) if limit is not None]
        self._most = min(limits, default=None)
        self._stack = ExitStack()
        with channel.root.mapped("stage", key):
            self._area, self._name, self._file = self._stack.enter_context(channel.root.temporary())
        self._md5 = Md5Follower(self._file, md5_helpers)
        # Closed in reverse order: nobody may read the file once its descriptor is closed.
        self._stack.callback(self._md5.settle)

    @property
    def written_bytes(self) -> int:
        """How much has been written so far."""
        return self._written

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next piece.

        Raises as soon as there is more than was declared or is allowed, and ChannelFull when it
        takes of the room that must stay free.
        """
        count = len(chunk)
        if self._most is not None and self._written + count > self._most:
            raise self._too_much(self._written + count)
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
        """Compare what was declared, make the body durable and give it its key.

        Raises InvalidError (size_mismatch, sha256_mismatch, md5_mismatch); then, as after any other
        error, nothing is kept.
        """
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
        """Drop the body. Does nothing after `finish` or an earlier `abort`."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    def _too_much(self, size: int) -> InvalidError | TooLargeError:
        limit = self._expected.max_size
        if limit is not None and size > limit:
            return TooLargeError("the body is too large", limit_bytes=limit)
        return self._mismatch("size", self._expected.size, f"more than {self._expected.size}")

    def _demand(self, what: str, expected: object, actual: object) -> None:
        if expected is not None and actual != expected:
            raise self._mismatch(what, expected, actual)

    def _mismatch(self, what: str, expected: object, actual: object) -> InvalidError:
        return InvalidError(
            f"the body has another {what} than declared",
            code=f"{what}_mismatch",
            expected=expected,
            actual=actual,
        )
