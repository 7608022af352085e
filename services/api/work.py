"""Blocking work off the event loop: transactions and files, each on a bounded number of threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread
from sqlalchemy.orm import Session

from shared.core.errors import UnavailableError
from shared.outbox.db import Database

T = TypeVar("T")

#: Requests that may wait for each thread; beyond it waiting would only make the answer useless.
WAITING_PER_THREAD = 32


class Busy(UnavailableError):
    """Too many requests wait for this process; the work was not begun."""

    code = "busy"


class Work:
    """The threads of this process's requests.

    A call is never abandoned half-way: a cancelled request still waits for its transaction's end;
    one that has not begun is not carried out. Raises Busy when too many wait, and UnavailableError
    when the database does not answer.
    """

    def __init__(self, database: Database, *, threads: int) -> None:
        self._database = database
        self._database_threads = anyio.CapacityLimiter(threads)
        # Files wait for the disk, not for the pool of connections.
        self._file_threads = anyio.CapacityLimiter(threads)
        self._cleaning_threads = anyio.CapacityLimiter(threads)
        self._most = threads * (1 + WAITING_PER_THREAD)
        self._inside = 0

    async def read(self, work: Callable[[Session], T]) -> T:
        """Run `work(session)` in a transaction that writes nothing."""
        return await self._run(
            lambda: self._database.run_session(work, read_only=True), self._database_threads
        )

    async def write(self, work: Callable[[Session], T]) -> T:
        """Run `work(session)` in a transaction, again after a deadlock."""
        return await self._run(lambda: self._database.run_session(work), self._database_threads)

    async def call(self, work: Callable[[], T]) -> T:
        """Run something that opens its own transactions."""
        return await self._run(work, self._database_threads)

    async def files(self, work: Callable[[], T]) -> T:
        """Run something that waits for a disk or a channel."""
        return await self._run(work, self._file_threads)

    async def more_files(self, work: Callable[[], T]) -> T:
        """Go on with files for a request whose answer has begun: it waits, however many do."""
        return await _to_its_end(work, self._file_threads)

    async def clean_up(self, work: Callable[[], object]) -> None:
        """Run what must run to its end, also for a request that is being cancelled."""
        await _to_its_end(work, self._cleaning_threads, is_optional=False)

    async def _run(self, work: Callable[[], T], limiter: anyio.CapacityLimiter) -> T:
        if self._inside >= self._most:
            raise Busy
        self._inside += 1
        try:
            return await _to_its_end(work, limiter)
        finally:
            self._inside -= 1


async def _to_its_end(
    work: Callable[[], T], limiter: anyio.CapacityLimiter, *, is_optional: bool = True
) -> T:
    """Run `work` on a thread. A cancel in between waits for its end, unless it has not begun."""
    # Whoever takes it first decides: the thread that begins, or the cancel.
    first = threading.Lock()

    def begin() -> T:
        if is_optional and not first.acquire(blocking=False):
            raise asyncio.CancelledError
        return work()

    running = asyncio.ensure_future(anyio.to_thread.run_sync(begin, limiter=limiter))
    try:
        # Anyio's own shield holds off its own cancels only.
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if not (is_optional and first.acquire(blocking=False)):
            await _ended(running)
        raise


async def _ended(running: asyncio.Future[T]) -> None:
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            continue
    if not running.cancelled():
        running.exception()
