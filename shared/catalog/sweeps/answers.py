"""Answers that were kept for requests which may come twice, and are kept no longer."""

from __future__ import annotations

from shared.catalog.idempotency import FORGET_ROWS, forget_expired
from shared.catalog.sweeps.context import Pass, SweepContext


class AnswerSweep:
    """Forgets all of them, however many a pass finds: each is a row that nobody reads again."""

    name = "answers"

    def __init__(self, context: SweepContext) -> None:
        self._context = context

    def run(self, turn: Pass) -> None:
        """Make one pass."""
        while not (self._context.limits.dry_run or turn.deadline.expired()):
            turn.check()
            forgotten = self._context.db.run_session(forget_expired)
            turn.counts["forgotten"] += forgotten
            if forgotten < FORGET_ROWS:
                return
