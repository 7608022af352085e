"""Holds whose time is over: ended, so that the content may go with its last reference."""

from __future__ import annotations

from shared.catalog.holds import expire_hold, overdue_holds
from shared.catalog.sweeps.context import PAGE_ROWS, Pass, SweepContext


class HoldSweep:
    """Ends all of them, however many a pass finds."""

    name = "holds"

    def __init__(self, context: SweepContext) -> None:
        self._db = context.db
        self._catalogue = context.catalogue
        self._is_dry_run = context.limits.dry_run

    def run(self, turn: Pass) -> None:
        """Make one pass."""
        while not turn.deadline.expired():
            page = self._db.run_session(
                lambda session: overdue_holds(session, limit=PAGE_ROWS), read_only=True
            )
            for hold_id in page:
                turn.check()
                turn.counts["ended"] += 1 if self._is_dry_run else self._expire(hold_id)
            if len(page) < PAGE_ROWS or self._is_dry_run:
                return

    def _expire(self, hold_id: int) -> bool:
        return self._db.run_session(lambda session: expire_hold(session, self._catalogue, hold_id))
