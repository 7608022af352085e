"""Requests that wait for pulls: one look at the database for all of them, no thread for any."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from services.api.work import Work
from shared.catalog.origins.pulling import ended_pulls
from shared.core.errors import ThrottledError, TransientError

log = structlog.get_logger()

#: Seconds between two looks.
LOOK_SECONDS = 0.1
#: Pulls that one look asks about.
LOOK_PULLS = 500


class OriginPending(ThrottledError):
    """The object is being fetched from its origin."""

    code = "origin_pending"


class PullWatch:
    """Belongs to one event loop. `most` requests wait at a time."""

    def __init__(self, work: Work, *, most: int) -> None:
        self._work, self._most = work, most
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}
        self._count = 0
        self._watching: asyncio.Task[None] | None = None

    async def wait(self, pull_id: int, seconds: float) -> None:
        """Wait until a pull is over.

        Raises OriginPending when that takes longer, or too many wait.
        """
        if self._count >= self._most:
            raise OriginPending("too many requests wait for origins", retry_after_seconds=1)
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(pull_id, set()).add(over)
        self._count += 1
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(seconds):
                await over
        except TimeoutError:
            raise OriginPending(retry_after_seconds=max(1.0, min(seconds, 10.0))) from None
        finally:
            self._count -= 1
            others = self._waiting[pull_id]
            others.discard(over)
            if not others:
                del self._waiting[pull_id]

    async def _watch(self) -> None:
        while self._waiting:
            await asyncio.sleep(LOOK_SECONDS)
            ids = list(self._waiting)
            for start in range(0, len(ids), LOOK_PULLS):
                await self._look(ids[start : start + LOOK_PULLS])

    async def _look(self, ids: Sequence[int]) -> None:
        try:
            over = await self._work.read(lambda session: ended_pulls(session, ids))
        except TransientError as error:
            log.warning("origin_look_failed", error=str(error))
            return
        for pull_id in over:
            for waiting in self._waiting.get(pull_id, ()):
                if not waiting.done():
                    waiting.set_result(None)
