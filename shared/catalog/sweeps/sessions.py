"""Resumable uploads whose time is over: open ones are given up, their parts and results go."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from shared.catalog.models import SessionState
from shared.catalog.sweeps.context import Pass, SweepContext
from shared.catalog.uploading.removal import (
    expired_sessions,
    forget_failed,
    forget_results,
    give_up_open,
    homeless_sessions,
    remove_session,
)
from shared.core.errors import BloxError


class SessionSweep:
    """Asks again under each session's lock: one that is still used is renewed by every part."""

    name = "sessions"

    def __init__(self, context: SweepContext) -> None:
        self._context = context

    def run(self, turn: Pass) -> None:
        """Make one pass. Aborted ones are on their way out already: a death left them there."""
        homeless = self._context.db.run_session(homeless_sessions, read_only=True)
        for session_id in chain(homeless, self._expired(SessionState.OPEN, turn)):
            if turn.may_remove("given_up", session_id=session_id):
                self._give_up(session_id)
        for session_id in self._expired(SessionState.ABORTED, turn):
            if turn.may_remove("removed", session_id=session_id):
                self._remove(session_id, turn)
        for session_id in self._expired(SessionState.FAILED, turn):
            if turn.may_remove("released", session_id=session_id):
                self._release(session_id, turn)
        self._forget(turn)

    def _expired(self, state: SessionState, turn: Pass) -> Iterator[int]:
        """Yield each of them once, also one that stays."""
        seen: set[int] = set()
        while not turn.is_over:
            page = self._context.db.run_session(
                lambda session: expired_sessions(session, state, but=seen), read_only=True
            )
            if not page:
                return
            seen.update(page)
            yield from page

    def _give_up(self, session_id: int) -> None:
        self._context.db.run_session(
            lambda session: give_up_open(session, self._context.catalogue, session_id)
        )

    def _remove(self, session_id: int, turn: Pass) -> None:
        try:
            remove_session(
                self._context.db, self._context.staging, session_id, deadline=turn.deadline
            )
        except BloxError:
            # Staging does not answer, or the row is locked: the next pass goes on.
            turn.counts["removals_failed"] += 1

    def _forget(self, turn: Pass) -> None:
        """Delete results, however many: each is a row that nobody asks for again."""
        while not (self._context.limits.dry_run or turn.deadline.expired()):
            turn.check()
            forgotten = self._context.db.run_session(forget_results)
            turn.counts["forgotten"] += forgotten
            if not forgotten:
                return

    def _release(self, session_id: int, turn: Pass) -> None:
        released = self._context.db.run_session(lambda session: forget_failed(session, session_id))
        for key in released:
            try:
                self._context.staging.remove(key, deadline=turn.deadline)
            except BloxError:
                # Nobody names it: the sweep of staging finds it.
                turn.counts["files_left"] += 1
