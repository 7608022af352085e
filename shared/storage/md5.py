"""The MD5 of a body that is still being written, computed behind the writer's back.

MD5 takes twice the time of SHA-256 on today's processors. It is the ETag that S3 clients expect, so
it has to be there when the body ends, but it need not hold up the loop that receives the body:
helper threads read what was written from the file, which is still in memory, a step at a time.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from shared.storage.body import CHUNK_BYTES

#: Bytes that a helper hashes before it is another body's turn: some 10 ms.
STEP_BYTES = 8 * 1024 * 1024


class Md5Helpers:
    """A few threads for all bodies of the process; made at the first large body."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, job: Callable[[int], None], until: int) -> Future[None]:
        """Run `job(until)` in a helper thread."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="md5")
            return self._pool.submit(job, until)


class Md5Follower:
    """The MD5 of one file that only grows. `advance` and `finish` belong to its one writer."""

    def __init__(self, descriptor: int, helpers: Md5Helpers) -> None:
        self._descriptor = descriptor
        self._helpers = helpers
        self._digest = hashlib.md5(usedforsecurity=False)
        self._hashed = 0
        self._step: Future[None] | None = None

    def advance(self, written: int) -> None:
        """Say that `written` bytes are in the file; never blocks."""
        if written - self._hashed < STEP_BYTES:
            return
        if self._step is None or self._step.done():
            self._step = self._helpers.submit(self._catch_up, written)

    def _catch_up(self, until: int) -> None:
        """Hash what is missing up to byte `until`."""
        until = min(until, self._hashed + STEP_BYTES)
        while self._hashed < until:
            chunk = os.pread(self._descriptor, min(CHUNK_BYTES, until - self._hashed), self._hashed)
            if not chunk:
                raise OSError("the file is shorter than what was written")
            self._digest.update(chunk)
            self._hashed += len(chunk)

    def finish_soon(self, size: int) -> None:
        """Hash the rest in a helper thread while this one does something else."""
        self.settle()
        if size - self._hashed >= CHUNK_BYTES:
            self._step = self._helpers.submit(self._catch_up_wholly, size)

    def _catch_up_wholly(self, size: int) -> None:
        while self._hashed < size:
            self._catch_up(size)

    def finish(self, size: int) -> str:
        """Hash the rest in this thread and return the MD5, hexadecimal."""
        self.settle()
        self._catch_up_wholly(size)
        return self._digest.hexdigest()

    def settle(self) -> None:
        """Wait until no helper reads the file; raises what the helper raised."""
        if self._step is not None:
            self._step.result()
            self._step = None
