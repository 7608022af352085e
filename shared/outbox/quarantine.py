"""Isolating a task that is suspected of killing its process.

It starts when nothing else runs here, or after a while; nothing is fetched beside it until it has
ended, or has run for a while without doing harm.
"""

from __future__ import annotations

import threading

from shared.core.clock import monotonic
from shared.outbox.execution import CLAIMED, ENDED, Execution, Executions

#: Seconds that a suspect waits for the process to be empty, and that it runs alone.
PATIENCE_SECONDS = 60.0


class Quarantine:
    """At most one suspect per process."""

    def __init__(
        self, executions: Executions, *, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._executions = executions
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._suspect: Execution | None = None

    def enter(self, suspect: Execution) -> bool:
        """Begin to isolate this execution; False while another one is isolated here."""
        with self._lock:
            if self._is_isolating():
                return False
            self._suspect = suspect
            return True

    @property
    def is_closed(self) -> bool:
        """Tell whether nothing may be fetched now."""
        with self._lock:
            return self._is_isolating()

    def _is_isolating(self) -> bool:
        suspect = self._suspect
        if suspect is None:
            return False
        is_held = self._executions.find(suspect.task.id) is suspect
        is_over = suspect.phase == ENDED or not is_held
        has_run = (
            suspect.phase != CLAIMED and monotonic() - suspect.started_at >= self._patience_seconds
        )
        if is_over or has_run:
            self._suspect = None
            return False
        return True

    def may_start(self, suspect: Execution) -> bool:
        """Tell whether the suspect may be handed to a thread now, or needs none any more."""
        if suspect.phase != CLAIMED or suspect.stop_error is not None:
            return True
        alone = len(self._executions) <= 1
        return alone or monotonic() - suspect.claimed_at >= self._patience_seconds
