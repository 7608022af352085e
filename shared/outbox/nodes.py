"""The rows of `nodes`: which processes live, what they consume, how busy they are.

Windows are measured by the live consumers, credits are dealt to the live producers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import redis
import structlog

from shared.core.clock import monotonic
from shared.core.errors import BloxError
from shared.outbox.context import OutboxContext
from shared.outbox.db import Line
from shared.outbox.messages import split_queue_key
from shared.outbox.statements import regions
from shared.outbox.statements import scan as statements

Role = Literal["producer", "worker", "scheduler"]
#: A process counts as alive for this many of its beats.
BEATS_ALIVE = 3
#: Seconds that the row of a dead process stays for people to look at.
AGED_SECONDS = 600.0
#: Rows dropped in one transaction.
_PAGE = 100

_log = structlog.get_logger("outbox.nodes")


@dataclass(frozen=True, slots=True)
class Node:
    """One live process. Queues and the means' keys are names as in Redis, with their region."""

    name: str
    region: str
    role: Role
    queues: frozenset[str]
    threads: int
    threads_busy: int
    mean_seconds: Mapping[str, float]


class NodeWriter:
    """Keeps this process's own row; it is written every `settings.node_seconds`. Thread-safe."""

    def __init__(self, context: OutboxContext, *, region: str = "", version: str = "") -> None:
        self._context = context
        self._region = region
        self._version = version
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._is_removed = False
        self._consumed: frozenset[str] = frozenset()

    def write(
        self,
        *,
        role: Role,
        queues: Iterable[str] = (),
        threads: int = 0,
        threads_busy: int = 0,
        mean_seconds: Mapping[str, float] | None = None,
    ) -> None:
        """Write the row, in a transaction of its own. Raises UnavailableError as the database does.

        `queues` are names as in Redis; `mean_seconds` are execution times by such a name. The
        filler is woken for queues that were not among them before: their windows have just opened.
        """
        queues = frozenset(queues)
        # In one order everywhere: several processes write the same rows.
        places = sorted(split_queue_key(name) for name in queues)
        means = {name: round(seconds, 6) for name, seconds in (mean_seconds or {}).items()}
        values = (
            self._region,
            role,
            json.dumps(sorted(queues)),
            threads,
            threads_busy,
            json.dumps(means),
            self._version,
            self._context.node,
        )
        sql = self._context.db.dialect.sql

        def write(cursor: Any) -> None:
            cursor.execute(sql(statements.UPDATE_NODE), values)
            if cursor.rowcount == 0:
                cursor.execute(sql(statements.INSERT_NODE), values)
            for place in places if threads else ():
                cursor.execute(sql(regions.UPDATE_CONSUMED), place)
                if cursor.rowcount == 0:
                    cursor.execute(sql(regions.INSERT_CONSUMED), place)

        with self._lock:
            if self._is_removed:
                return
            if self._line is None:
                self._line = self._context.db.line()
            self._context.db.run(write, line=self._line)
            is_new, self._consumed = not queues <= self._consumed, queues
        if is_new:
            try:
                self._context.scripts.ring_filler()
            except redis.RedisError as error:
                _log.info("filler_not_rung", error=str(error))

    def remove(self) -> None:
        """Remove the row, so that windows shrink at once; nothing writes it again."""
        sql = self._context.db.dialect.sql(statements.DROP_NODE)
        with self._lock:
            if self._is_removed:
                return
            self._is_removed = True
            line, self._line = self._line, None
            try:
                self._context.db.run(lambda cursor: cursor.execute(sql, (self._context.node,)))
            except BloxError as error:
                # It ages out by itself.
                _log.info("node_not_removed", node=self._context.node, error=str(error))
            finally:
                if line is not None:
                    line.close()


class LiveNodes:
    """The live processes, read at most every `max_age_seconds`. For one thread at a time."""

    def __init__(self, context: OutboxContext, *, max_age_seconds: float | None = None) -> None:
        self._context = context
        beat = context.settings.node_seconds
        self._max_age_seconds = beat / 2 if max_age_seconds is None else max_age_seconds
        self._read_at = float("-inf")
        self._nodes: Sequence[Node] = ()

    def get(
        self, line: Line | None = None, *, max_age_seconds: float | None = None
    ) -> Sequence[Node]:
        """Return the live processes. Raises UnavailableError as the database does."""
        now = monotonic()
        age = self._max_age_seconds if max_age_seconds is None else max_age_seconds
        if now - self._read_at >= age:
            self._nodes = live_nodes(self._context, line=line)
            self._read_at = now
        return self._nodes

    def consumers(self, queue_name: str, line: Line | None = None) -> list[Node]:
        """Return the live workers of one queue."""
        return [
            node
            for node in self.get(line)
            if node.role == "worker" and node.threads > 0 and queue_name in node.queues
        ]

    def producers(self, line: Line | None = None) -> list[str]:
        """Return the names of the live processes that may enqueue, in order."""
        return sorted(node.name for node in self.get(line) if node.role != "scheduler")


def live_nodes(context: OutboxContext, *, line: Line | None = None) -> list[Node]:
    """Read the processes that were seen within three beats."""
    sql = context.db.dialect.sql(statements.LIVE_NODES)
    since = -BEATS_ALIVE * context.settings.node_seconds

    def read(cursor: Any) -> list[Node]:
        cursor.execute(sql, (since,))
        return [
            Node(
                name=row[0],
                region=row[1],
                role=row[2],
                queues=frozenset(json.loads(row[3] or "[]")),
                threads=int(row[4]),
                threads_busy=int(row[5]),
                mean_seconds=json.loads(row[6] or "{}"),
            )
            for row in cursor.fetchall()
        ]

    return context.db.run(read, line=line, read_only=True)


def drop_old_nodes(context: OutboxContext, *, older_than_seconds: float = AGED_SECONDS) -> int:
    """Drop the rows of processes that were not seen for so long; returns how many.

    Ids are read without locks and deleted one by one under the same condition, so that a process
    that has come back meanwhile keeps its row.
    """
    sql = context.db.dialect.sql

    def drop(cursor: Any) -> int:
        cursor.execute(sql(statements.OLD_NODES), (-older_than_seconds, _PAGE))
        names = sorted(row[0] for row in cursor.fetchall())
        count = 0
        for name in names:
            cursor.execute(sql(statements.DROP_OLD_NODE), (name, -older_than_seconds))
            count += cursor.rowcount
        return count

    return context.db.run(drop)
