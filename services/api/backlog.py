"""Whether a queue takes more work of a tenant; asked before a body is read.

A count is kept for a moment, longer the dearer it was; this process's own tasks since are added.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.core.errors import BacklogError
from shared.outbox.schema import tasks
from shared.outbox.states import State

#: A count is good for this long ...
FRESH_SECONDS = 1.0
#: ... or for this many times what it took, so that counting never takes more than a twentieth.
FRESH_FACTOR = 20.0
#: Tenants and queues remembered at once.
MAX_ENTRIES = 10_000
#: A client should come back when some of the work is done.
RETRY_AFTER_SECONDS = 5.0

Name = tuple[str, str, str]


@dataclass(slots=True)
class _Count:
    waiting: int
    good_until: float


class Backlog:
    """The waiting tasks of each (queue, region, tenant), roughly, and the limit on them."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._counts: dict[Name, _Count] = {}

    def check(self, session: Session, *, queue: str, region: str, tenant_id: str) -> None:
        """Raise BacklogError when the limit is reached. Runs on a worker thread."""
        name = (queue, region, tenant_id)
        with self._lock:
            known = self._counts.get(name)
            if known is not None and known.good_until < time.monotonic():
                # Others go on with the old number while this thread counts.
                known.good_until = time.monotonic() + FRESH_SECONDS
                known = None
        if known is None:
            known = self._count(session, name)
        if known.waiting >= self._limit:
            raise BacklogError(
                f"{self._limit} tasks of this tenant wait in queue {queue} already",
                retry_after_seconds=RETRY_AFTER_SECONDS,
                queue=queue,
                limit=self._limit,
            )

    def add(self, *, queue: str, region: str, tenant_id: str) -> None:
        """Count a task that this process has just enqueued."""
        with self._lock:
            known = self._counts.get((queue, region, tenant_id))
            if known is not None:
                known.waiting += 1

    def _count(self, session: Session, name: Name) -> _Count:
        started = time.monotonic()
        waiting = sum(self._count_state(session, name, s) for s in (State.PENDING, State.SCHEDULED))
        now = time.monotonic()
        count = _Count(waiting, now + max(FRESH_SECONDS, FRESH_FACTOR * (now - started)))
        with self._lock:
            if len(self._counts) >= MAX_ENTRIES:
                self._counts.clear()
            self._counts[name] = count
        return count

    def _count_state(self, session: Session, name: Name, state: State) -> int:
        queue, region, tenant_id = name
        # Equality on the first four columns of the claim index, and never more rows than the limit.
        rows = (
            sa.select(sa.literal(1))
            .select_from(tasks)
            .where(
                tasks.c.queue == queue,
                tasks.c.region == region,
                tasks.c.state == state,
                tasks.c.tenant_id == tenant_id,
            )
            .limit(self._limit)
            .subquery()
        )
        return session.execute(sa.select(sa.func.count()).select_from(rows)).scalar_one()
