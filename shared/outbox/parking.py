"""Places that are given on: from who releases one to the next parked task, and what it leaves.

A place goes in three steps: the next row is read, one call turns the token into the reservation of
its task, a transaction of its own makes that row pending. Whoever dies in between leaves a
reservation that expires, and a row that the scan wakes.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from shared.core.errors import BloxError
from shared.core.failpoints import failpoint
from shared.outbox.context import OutboxContext
from shared.outbox.db import Line
from shared.outbox.parked import ParkedRows
from shared.outbox.ports import RESERVED
from shared.outbox.rebuilding import rebuild

#: Rows looked at in one read: others who release at the same moment read the same ones.
_LOOK = 4
#: Reads after which a place that nobody could be given is left to the scan.
_ROUNDS = 4

_log = structlog.get_logger("outbox.parking")


class Parking:
    """Gives places on for one process. Thread-safe; its methods never raise for an outage."""

    def __init__(self, context: OutboxContext, line: Line | None = None) -> None:
        self._context = context
        self._line = line
        self.rows = ParkedRows(context, line)

    def limit(self, resource: str, default: int = 0) -> int:
        """Return how many places a resource has; raises UnavailableError as the port does."""
        limits = self._context.limits
        return default if limits is None else limits.limit(resource)

    def give_on(self, resource: str, token: str, *, limit: int) -> bool:
        """Give one's own place to the next parked task, or free it; tells whether one got it."""
        places = self._context.places
        if places is None:
            return False
        try:
            for turn in range(1, _ROUNDS + 1 if limit > 0 else 1):
                rows = self.rows.next(resource, turn * _LOOK)
                if not rows:
                    break
                for row in rows:
                    outcome = places.hand_over(resource, token, row.id, limit=limit)
                    if outcome == "taken":
                        continue
                    if outcome != "reserved":
                        return False
                    token = f"{RESERVED}{row.id}"
                    failpoint("parking.reserved")
                    if self.rows.wake(resource, [row], token=token):
                        failpoint("parking.woken")
                        self.ring()
                        return True
                    # Not parked any more: its place goes to the next.
        except BloxError as error:
            _log.warning("place_not_given_on", resource=resource, error=str(error))
        self.free(resource, token)
        return False

    def free(self, resource: str, token: str) -> None:
        """Give a place back to nobody; the scan wakes whom it may serve."""
        if self._context.places is None:
            return
        try:
            self._context.places.release(resource, token)
        except BloxError as error:
            # It expires.
            _log.warning("place_not_released", resource=resource, error=str(error))

    def give_up(
        self, slots: Mapping[str, str], *, broken: str | None = None, reserved_only: bool = False
    ) -> None:
        """Give on what a task that is over, or runs elsewhere, had reserved or held.

        A place of a `broken` resource is only freed: everybody woken for it would come back.
        """
        for resource, token in slots.items():
            if reserved_only and not token.startswith(RESERVED):
                continue
            if resource == broken:
                self.free(resource, token)
                continue
            try:
                limit = self.limit(resource)
            except BloxError as error:
                _log.warning("limit_not_known", resource=resource, error=str(error))
                self.free(resource, token)
            else:
                self.give_on(resource, token, limit=limit)

    def look_again(self, resource: str) -> None:
        """Look for a free place after a task was parked: one may just have been given back."""
        try:
            limit = self.limit(resource)
            if limit > 0 and self.free_places(resource, limit):
                self.fill(resource, limit, 1, is_due_only=False)
        except BloxError as error:
            _log.info("place_not_looked_for", resource=resource, error=str(error))

    def free_places(self, resource: str, limit: int) -> int:
        """Return how many places are neither held nor reserved; 0 when that is not known.

        Raises UnavailableError.
        """
        places = self._context.places
        if places is None:
            return limit
        in_use = places.in_use(resource)
        if in_use is None and rebuild(self._context, line=self._line):
            in_use = places.in_use(resource)
        return 0 if in_use is None else max(0, limit - in_use)

    def fill(self, resource: str, limit: int, most: int, *, is_due_only: bool) -> int:
        """Wake up to `most` parked tasks, each with a reservation; returns how many.

        Raises UnavailableError.
        """
        places = self._context.places
        count = 0
        rows = (
            self.rows.next_that(resource, most, lambda row: row.is_due)
            if is_due_only
            else self.rows.next(resource, most)
        )
        for row in rows:
            if places is None:
                count += len(self.rows.wake(resource, [row], token=None))
                continue
            outcome = places.reserve(resource, row.id, limit=limit)
            if outcome == "taken":
                continue
            if outcome != "reserved":
                break
            token = f"{RESERVED}{row.id}"
            failpoint("parking.reserved")
            if self.rows.wake(resource, [row], token=token):
                count += 1
            else:
                count += self.give_on(resource, token, limit=limit)
        if count:
            self.ring()
        return count

    def ring(self) -> None:
        """Wake the filler; never raises."""
        try:
            self._context.scripts.ring_filler()
        except Exception as error:
            _log.info("filler_not_rung", error=str(error))
