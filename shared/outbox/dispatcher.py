"""The dispatcher: one thread per process that takes committed tasks to Redis, off the request path.

It pushes in pipelines at once and marks in batches a little later. A push of the same dispatch id
twice is harmless (the second finds no body), so a push whose answer was lost is simply tried again
while the lease allows.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import redis
import structlog

from shared.core.clock import Deadline, monotonic
from shared.core.errors import BloxError
from shared.core.failpoints import failpoint
from shared.outbox.context import OutboxContext
from shared.outbox.once import Outage
from shared.outbox.records import add_moves
from shared.outbox.signals import DispatchFailed
from shared.outbox.statements import enqueue as statements
from shared.outbox.states import State

#: (queue name in Redis, task id, dispatch id, local monotonic end of the dispatch lease)
Dispatch: TypeAlias = tuple[str, int, str, float]
#: (queue, region, tenant id, priority) of a row that was born pending
LaneNote: TypeAlias = tuple[str, str, str, int]
#: Writes lane rows for these notes, in short transactions of its own; their rows may be this old.
EnsureLanes: TypeAlias = Callable[[Sequence[LaneNote], float], None]

#: Messages in one pipeline and rows in one mark.
BATCH = 500
#: Messages kept for another push while Redis is away; the rest is left to the scans.
MAX_KEPT = 10_000
#: Seconds to gather, in a stream of commits, what comes next: fifty cost as much as one.
GATHER_SECONDS = 0.005
#: Seconds until pushed rows are marked. A worker needs no mark, and rows taken meanwhile
#: cost none; so marks wait, unless somebody follows the rows by their events ...
MARK_DELAY_SECONDS = 1.0
EVENTFUL_DELAY_SECONDS = 0.05
#: ... or there are this many of them.
MAX_UNMARKED = 10_000
#: Seconds between looks at Redis while it is away.
RETRY_SECONDS = 0.5
#: Seconds that a refused message waits before it is due again.
REFUSED_SECONDS = 1.0

_log = structlog.get_logger("outbox.dispatcher")
_Item: TypeAlias = "tuple[Sequence[Dispatch], Sequence[LaneNote], float] | None"


class Dispatcher:
    """Owns the thread. `submit` never blocks and never fails."""

    def __init__(self, context: OutboxContext, ensure_lanes: EnsureLanes) -> None:
        self._context = context
        self._ensure_lanes = ensure_lanes
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._line = context.db.line()
        self._kept: list[Dispatch] = []
        self._unmarked: list[Dispatch] = []
        #: How long before its commit the oldest row was written that lanes are noted for.
        self._late_seconds = 0.0
        self._pushed_at = self._mark_at = 0.0
        self._last_turn = 0.0
        self._outage = Outage(_log, "dispatch_redis")
        self._gather = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = Deadline()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="outbox-dispatcher", daemon=True)
        self._thread.start()

    def submit(
        self,
        dispatches: Sequence[Dispatch],
        lanes: Sequence[LaneNote],
        late_seconds: float = 0.0,
    ) -> None:
        """Take over what a commit left to do."""
        if dispatches or lanes:
            self._items.put((dispatches, lanes, late_seconds))

    def close(self, seconds: float) -> bool:
        """Push what is there, then end; False when that took longer than `seconds`."""
        if self._thread is None:
            return True
        self._closing = Deadline(seconds)
        self._items.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def is_alive(self) -> bool:
        """Tell whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        is_open = True
        while is_open or (self._kept and not self._closing.expired()):
            dispatches, lanes, has_more = self._collect()
            is_open = is_open and has_more
            try:
                self._turn(dispatches, lanes)
                if self._unmarked and (not is_open or self._is_mark_due()):
                    self._mark_pushed()
            except Exception:
                # Their rows wait in `dispatching`; the scan brings them back.
                _log.exception("dispatch_turn_failed", dispatches=len(dispatches))
            self._last_turn = monotonic()
        self._line.close()

    def _collect(self) -> tuple[list[Dispatch], list[LaneNote], bool]:
        dispatches: list[Dispatch] = self._kept
        lanes: list[LaneNote] = []
        self._kept = []
        try:
            item = self._items.get(timeout=self._patience(has_kept=bool(dispatches)))
            if monotonic() - self._last_turn < GATHER_SECONDS:
                self._gather.wait(GATHER_SECONDS)
            while True:
                if item is None:
                    return dispatches, lanes, False
                dispatches.extend(item[0])
                lanes.extend(item[1])
                self._late_seconds = max(self._late_seconds, item[2])
                if len(dispatches) >= BATCH or len(lanes) >= BATCH:
                    return dispatches, lanes, True
                item = self._items.get_nowait()
        except queue.Empty:
            return dispatches, lanes, True

    def _patience(self, *, has_kept: bool) -> float | None:
        if self._unmarked:
            return max(0.0, min(self._mark_at - monotonic(), RETRY_SECONDS))
        return RETRY_SECONDS if has_kept else None

    def _is_mark_due(self) -> bool:
        return len(self._unmarked) >= MAX_UNMARKED or monotonic() >= self._mark_at

    def _turn(self, dispatches: list[Dispatch], lanes: list[LaneNote]) -> None:
        margin = self._context.settings.dispatch_margin_seconds
        now = monotonic()
        by_queue: dict[str, list[Dispatch]] = defaultdict(list)
        for dispatch in dispatches:
            # Too close to the end of its lease, a scan may already be giving it a new id.
            if dispatch[3] - margin > now:
                by_queue[dispatch[0]].append(dispatch)
        for queue_name, batch in by_queue.items():
            for start in range(0, len(batch), BATCH):
                self._dispatch(queue_name, batch[start : start + BATCH])
        if lanes:
            self._note_lanes(lanes)

    def _dispatch(self, queue_name: str, batch: list[Dispatch]) -> None:
        failpoint("dispatch.before_push")
        try:
            self._context.scripts.push(queue_name, [(item[1], item[2]) for item in batch])
        except redis.ResponseError as error:
            _log.warning("dispatch_refused", queue=queue_name, count=len(batch), error=str(error))
            self._context.signals.emit(DispatchFailed(len(batch), unknown=False))
            self._mark(statements.MARK_REFUSED, State.SCHEDULED, REFUSED_SECONDS, batch)
            return
        except redis.RedisError as error:
            self._outage.away(queue=queue_name, error=str(error))
            self._context.signals.emit(DispatchFailed(len(batch), unknown=True))
            self._kept.extend(batch[: max(0, MAX_KEPT - len(self._kept))])
            return
        self._outage.back()
        failpoint("dispatch.before_mark")
        if not self._unmarked:
            self._pushed_at = monotonic()
            is_watched = bool(self._context.kinds.with_events())
            delay = EVENTFUL_DELAY_SECONDS if is_watched else MARK_DELAY_SECONDS
            self._mark_at = self._pushed_at + delay
        self._unmarked.extend(batch)

    def _mark_pushed(self) -> None:
        pushed, self._unmarked = self._unmarked, []
        # The scan looks for their messages as soon as if they had been marked at once.
        age = monotonic() - self._pushed_at
        grace = max(0.0, self._context.settings.dispatched_grace_seconds - age)
        for start in range(0, len(pushed), BATCH):
            self._mark(
                statements.MARK_DISPATCHED,
                State.DISPATCHED,
                grace,
                pushed[start : start + BATCH],
            )

    def _mark(self, text: str, target: State, seconds: float, batch: list[Dispatch]) -> None:
        ids = sorted(item[1] for item in batch)
        sql = self._context.db.dialect.sql_ids(text, ids=len(batch), dispatches=len(batch))
        dispatches = [item[2] for item in batch]
        kinds = self._context.kinds.with_events()

        def work(cursor: Any) -> None:
            cursor.execute(sql, [seconds, *ids, *dispatches])
            add_moves(
                cursor,
                self._context.db.dialect,
                ids,
                dispatches,
                kinds,
                source=State.DISPATCHING.value,
                target=target.value,
            )

        try:
            self._context.db.run(work, line=self._line)
        except BloxError as error:
            # Without the mark the rows stay `dispatching`: a worker may take them all the same.
            _log.warning("dispatch_mark_failed", count=len(batch), error=str(error))

    def _note_lanes(self, lanes: list[LaneNote]) -> None:
        late_seconds, self._late_seconds = self._late_seconds, 0.0
        self._ensure_lanes(sorted(set(lanes)), late_seconds)
        try:
            self._context.scripts.ring_filler()
        except redis.RedisError as error:
            self._outage.away(error=str(error))
