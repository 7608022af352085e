"""The exact comparison with Redis: rows that are `dispatched` there must have their message here.

A message that is missing twice, a while apart, is gone: its row becomes pending again. An error of
Redis is no answer, and never makes anything gone.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import redis
import structlog

from shared.core.clock import Deadline, monotonic
from shared.core.failpoints import failpoint
from shared.outbox.context import OutboxContext
from shared.outbox.db import Line
from shared.outbox.lanes import lower_lanes
from shared.outbox.messages import queue_key
from shared.outbox.scans import take_back
from shared.outbox.signals import Redelivered
from shared.outbox.statements import scan as statements
from shared.outbox.states import State
from shared.outbox.walk import SCAN_SECONDS, Bound, Expired, read_clock, walk

#: KEYS a queue's messages and list; ARGV dispatch ids. Answers the places in ARGV of those that are
#: missing. Messages without a list (somebody has deleted it) would never be fetched: they go too.
_MISSING = """
if redis.call('LLEN', KEYS[2]) == 0 then redis.call('DEL', KEYS[1]) end
local missing = {}
for i = 1, #ARGV do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 0 then missing[#missing + 1] = i end
end
return missing
"""

_log = structlog.get_logger("outbox.scans")


class Gone:
    """Remembers what was missing and since when. For one thread."""

    def __init__(self, context: OutboxContext, line: Line) -> None:
        self._context = context
        self._line = line
        self._missing = context.redis.register_script(_MISSING)
        self._bound = Bound(context.settings.full_scan_seconds)
        #: dispatch id -> local monotonic moment at which it was first missing: in the last pass
        #: over all rows, and in this one, which may take several scans.
        self._before: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._resume_at: dt.datetime | None = None
        self._oldest: dt.datetime | None = None

    def run_once(self) -> int:
        """Compare once; returns how many rows were made pending again.

        Raises UnavailableError as the database does. Where Redis does not answer nothing is
        concluded, and what was missing before counts as not looked for. A scan that ran out of time
        goes on from there the next time.
        """
        clock = read_clock(self._context.db, self._line)
        deadline = Deadline(SCAN_SECONDS)
        dialect = self._context.db.dialect
        count = 0
        for page in walk(
            self._context,
            self._line,
            statements.DISPATCHED,
            statements.DISPATCHED_TIE,
            self._resume_at or self._bound.start(),
        ):
            rows = [Expired.of(row, dialect) for row in page]
            gone = self._look(rows)
            back = self._bring_back(gone) if gone else set()
            count += len(back)
            stayed = (row.lease_until for row in rows if row.id not in back)
            self._oldest = min(filter(None, (self._oldest, next(stayed, None))), default=None)
            if deadline.expired():
                self._resume_at = rows[-1].lease_until
                break
        else:
            self._bound.reached(clock, self._oldest)
            self._resume_at = self._oldest = None
            self._before, self._since = self._since, {}
        if count:
            self._context.signals.emit(Redelivered("message_gone", count))
            _log.warning("messages_gone", count=count)
        return count

    def _look(self, rows: Sequence[Expired]) -> list[Expired]:
        """Return the rows whose message was missing long enough ago already, and is missing now."""
        by_queue: dict[str, list[Expired]] = defaultdict(list)
        for row in rows:
            by_queue[queue_key(row.lane.queue, row.lane.region)].append(row)
        gone: list[Expired] = []
        now = monotonic()
        scripts = self._context.scripts
        for name, members in by_queue.items():
            try:
                answer: list[Any] = self._missing(
                    keys=[scripts.messages_key(name), scripts.list_key(name)],
                    args=[row.dispatch_id for row in members],
                )
            except redis.RedisError as error:
                _log.info("messages_unknown", queue=name, error=str(error))
                continue
            for place in answer:
                row = members[int(place) - 1]
                since = self._before.get(row.dispatch_id, now)
                if now - since >= self._context.settings.gone_after_seconds:
                    gone.append(row)
                else:
                    self._since[row.dispatch_id] = since
        return gone

    def _bring_back(self, gone: Sequence[Expired]) -> set[int]:
        failpoint("scan.gone")
        ids = self._context.db.run(
            lambda cursor: take_back(self._context, cursor, gone, State.DISPATCHED),
            line=self._line,
        )
        back = set(ids)
        lower_lanes(
            self._context.db,
            [(row.lane, row.order_at) for row in gone if row.id in back],
            line=self._line,
        )
        return back
