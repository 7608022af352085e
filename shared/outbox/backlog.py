"""What the filler knows of one queue's pending rows: its lanes, where to read on, whose turn it is.

All of it is memory that may be lost: the lane rows hold a watermark that trails, and once a minute
everything is read without it.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from shared.core.clock import monotonic
from shared.outbox.context import OutboxContext
from shared.outbox.db import Line
from shared.outbox.fairness import Ring
from shared.outbox.lanes import (
    Lane,
    drop_idle_lanes,
    have_pending,
    insert_lanes,
    is_overlooked,
    move_watermarks,
    pending_lanes,
    read_lanes,
)
from shared.outbox.window import EPOCH, Place

#: A watermark trails the database's clock by this, for rows whose transaction commits late.
TRAIL = dt.timedelta(seconds=5)
#: Between two looks at that tail, a lane is read on from its last row.
LOOK_BACK_SECONDS = 1.0
#: Seconds between two writes of one lane's watermark, and how far it must have moved.
SAVE_SECONDS = 2.0
SAVE_STEP = dt.timedelta(seconds=1)
#: Looks for overlooked rows take at most one part in so many of the filler's time.
CHECK_SHARE = 20


@dataclass(slots=True)
class LaneMemory:
    """One lane: rows are claimed from `bound` on, the lane row may be moved to `watermark`."""

    tenant_id: str
    priority: int
    weight: int
    version: int
    watermark: dt.datetime
    bound: dt.datetime
    #: The database's clock when rows were last read from the watermark on, and the local one.
    clock: dt.datetime
    looked_back_at: float
    saved: dt.datetime
    saved_at: float = float("-inf")
    has_rows: bool = False

    def learn(self, lane: Lane, clock: dt.datetime, now: float) -> None:
        """Take in the lane row: a new version means that somebody made an older row pending."""
        self.weight = lane.weight
        if lane.version != self.version:
            self.version = lane.version
            self.saved = lane.watermark
            self.start(lane.watermark, clock, now)
        elif now - self.looked_back_at >= LOOK_BACK_SECONDS:
            self.start(self.watermark, clock, now)

    def start(self, watermark: dt.datetime, clock: dt.datetime, now: float) -> None:
        """Read from `watermark` on next time."""
        self.watermark = self.bound = watermark
        self.clock, self.looked_back_at = clock, now

    def claimed(self, last_order_at: dt.datetime) -> None:
        """Move on: rows up to `last_order_at` were claimed."""
        self.bound = max(self.bound, last_order_at)
        self.watermark = max(self.watermark, min(last_order_at, self.clock - TRAIL))

    def found_empty(self) -> None:
        """Move on: no row was pending from `bound` on, not even a locked one."""
        self.watermark = max(self.watermark, self.clock - TRAIL)
        self.bound = max(self.bound, self.watermark)


class Backlog:
    """The pending rows of one place, as far as the filler knows. For one thread."""

    def __init__(self, context: OutboxContext, place: Place) -> None:
        self._context = context
        self.place = place
        self._lanes: dict[tuple[str, int], LaneMemory] = {}
        self._by_tenant: dict[str, list[LaneMemory]] = {}
        self.ring = Ring()
        self._looked_fully_at = float("-inf")
        self._checked_at = monotonic()
        self._check_cost_seconds = 0.0

    @property
    def has_rows(self) -> bool:
        """Tell whether pending rows are known."""
        return len(self.ring) > 0

    def lanes_of(self, tenant_id: str) -> list[LaneMemory]:
        """Return a tenant's lanes with rows, the most urgent first."""
        return [lane for lane in self._by_tenant.get(tenant_id, ()) if lane.has_rows]

    def look(self, line: Line) -> bool:
        """Read the lanes and look into those believed empty; tell whether it was without bounds.

        Once a minute all bounds are left out, lanes that pending rows lack are added, and those
        that stayed empty are dropped. So it is when all lanes are empty and a row waits all the
        same: whoever made it pending died before saying so, or it was locked when it was its turn.
        """
        is_full = monotonic() - self._looked_fully_at >= self._context.settings.full_scan_seconds
        self._look(line, is_full=is_full)
        if not is_full and self._is_overlooking(line):
            is_full = True
            self._look(line, is_full=True)
        return is_full

    def _look(self, line: Line, *, is_full: bool) -> None:
        db, now = self._context.db, monotonic()
        if is_full:
            insert_lanes(db, pending_lanes(db, self.place, line=line), line=line)
            drop_idle_lanes(db, self.place, line=line)
            self._looked_fully_at = now
        lanes, clock = read_lanes(db, self.place, line=line)
        self._learn(lanes, clock, now)
        if is_full:
            for lane in self._lanes.values():
                lane.start(EPOCH, clock, now)
        unknown = [lane for lane in self._lanes.values() if not lane.has_rows]
        answers = have_pending(
            db,
            self.place,
            [(lane.tenant_id, lane.priority, lane.bound) for lane in unknown],
            line=line,
        )
        for lane, answer in zip(unknown, answers, strict=True):
            lane.has_rows = answer
            if not answer:
                lane.found_empty()

    def _is_overlooking(self, line: Line) -> bool:
        now = monotonic()
        pause = max(self._context.settings.scan_seconds, CHECK_SHARE * self._check_cost_seconds)
        if now - self._checked_at < pause or any(lane.has_rows for lane in self._lanes.values()):
            return False
        trail = TRAIL.total_seconds()
        answer = is_overlooked(
            self._context.db,
            self.place,
            # Older ones were seen by the last full look.
            since_seconds=now - self._looked_fully_at + trail,
            until_seconds=trail,
            line=line,
        )
        self._checked_at = monotonic()
        self._check_cost_seconds = self._checked_at - now
        return answer

    def begin(self, free: int) -> None:
        """Begin a round for a window with so many free places."""
        weights: dict[str, int] = {}
        for lane in self._lanes.values():
            if lane.has_rows:
                weights[lane.tenant_id] = max(weights.get(lane.tenant_id, 1), lane.weight)
        self.ring.begin(weights, max(0, free))

    def save(self, line: Line) -> None:
        """Write the watermarks that have moved, in a transaction of their own."""
        now = monotonic()
        due = [
            lane
            for lane in self._lanes.values()
            if now - lane.saved_at >= SAVE_SECONDS and lane.watermark - lane.saved >= SAVE_STEP
        ]
        if not due:
            return
        move_watermarks(
            self._context.db,
            self.place,
            [(lane.tenant_id, lane.priority, lane.watermark, lane.version) for lane in due],
            line=line,
        )
        for lane in due:
            lane.saved, lane.saved_at = lane.watermark, now

    def _learn(self, lanes: list[Lane], clock: dt.datetime, now: float) -> None:
        known = self._lanes
        self._lanes = {}
        self._by_tenant = {}
        for lane in lanes:
            key = (lane.tenant_id, lane.priority)
            memory = known.get(key)
            if memory is None:
                memory = LaneMemory(
                    *(lane.tenant_id, lane.priority, lane.weight, lane.version),
                    watermark=lane.watermark,
                    bound=lane.watermark,
                    clock=clock,
                    looked_back_at=now,
                    saved=lane.watermark,
                )
            else:
                memory.learn(lane, clock, now)
            self._lanes[key] = memory
            # Read in the order of tenant and priority.
            self._by_tenant.setdefault(lane.tenant_id, []).append(memory)
