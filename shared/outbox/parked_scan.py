"""The scan of parked tasks: places that expired, limits that were raised, breakers whose time came.

It wakes at most as many as places are free. Where there is no limit, or somebody has waited for a
minute, it begins with one and doubles as long as nobody comes back, so that a broken resource is
not met by all that wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from shared.core.clock import Deadline
from shared.core.errors import BloxError
from shared.core.failpoints import failpoint
from shared.outbox.context import OutboxContext
from shared.outbox.db import Line
from shared.outbox.parking import Parking
from shared.outbox.signals import Redelivered
from shared.outbox.walk import SCAN_SECONDS

_log = structlog.get_logger("outbox.scans")


@dataclass(slots=True)
class _Pace:
    """How many of an unlimited resource the next scan may wake, and whom the last one woke."""

    allowed: int = 1
    woken: tuple[int, ...] = ()


class ParkedScan:
    """For one thread; raises UnavailableError as the database does, not for Redis."""

    def __init__(self, context: OutboxContext, line: Line) -> None:
        self._context = context
        self._parking = Parking(context, line)
        self._paces: dict[str, _Pace] = {}

    def run_once(self) -> int:
        """Wake what may be served now; returns how many rows became pending."""
        deadline = Deadline(SCAN_SECONDS)
        resources = self._parking.rows.resources()
        self._paces = {name: pace for name, pace in self._paces.items() if name in resources}
        count = 0
        for resource in resources:
            if deadline.expired():
                break
            try:
                count += self._serve(resource)
            except BloxError as error:
                # Another resource may be better off; the database itself is asked again by it.
                _log.info("parked_not_served", resource=resource, error=str(error))
        failpoint("scan.parked")
        if count:
            self._context.signals.emit(Redelivered("parked", count))
        return count

    def _serve(self, resource: str) -> int:
        limit = self._parking.limit(resource)
        if limit > 0 and self._context.places is not None:
            free = self._parking.free_places(resource, limit)
            if not free:
                # Who is parked may have another way by now, as an upload has its other channels.
                return self._wake_slowly(resource, is_patient_only=True)
            most = min(free, self._context.settings.scan_page)
            return self._parking.fill(resource, limit, most, is_due_only=True)
        return self._wake_slowly(resource)

    def _wake_slowly(self, resource: str, *, is_patient_only: bool = False) -> int:
        rows, pace = self._parking.rows, self._paces.setdefault(resource, _Pace())
        if pace.woken:
            came_back = rows.count_parked(resource, pace.woken)
            most = self._context.settings.scan_page
            pace.allowed = 1 if came_back else min(2 * pace.allowed, most)
        if is_patient_only:
            # The one that has just come back holds up the next: all of them try one at a time.
            chosen = [row for row in rows.next(resource, pace.allowed) if row.is_patient]
        else:
            chosen = rows.next_that(resource, pace.allowed, lambda row: row.is_due)
        pace.woken = tuple(rows.wake(resource, chosen, token=None))
        return len(pace.woken)
