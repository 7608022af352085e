"""Ties executions to the parts of their outbox that keep their lease and end them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy.orm import Session

from shared.outbox.completion import Completion, Completions
from shared.outbox.execution import Execution, ExecutionPorts, Lock
from shared.outbox.heartbeat import Heartbeat


class Ports(ExecutionPorts):
    """Ties executions to the parts of their outbox."""

    def __init__(self, namespace: str, heartbeat: Heartbeat, completions: Completions) -> None:
        self.namespace = namespace
        self._heartbeat = heartbeat
        self._completions = completions

    def save_checkpoint(self, execution: Execution, data: str, progress: int) -> None:
        """Keep a checkpoint, fenced."""
        self._heartbeat.save_checkpoint(execution, data, progress)

    def emit(self, execution: Execution, type: str, data: dict[str, Any]) -> None:  # noqa: A002
        """Record a progress event, fenced."""
        self._heartbeat.emit(execution, type, data)

    def complete(
        self, execution: Execution, lock: Sequence[Lock]
    ) -> AbstractContextManager[Completion]:
        """Open the completing transaction."""
        return self._completions.open(execution, lock)

    def fenced(self, execution: Execution, lock: Sequence[Lock]) -> AbstractContextManager[Session]:
        """Open a fenced transaction that does not end the task."""
        return self._completions.fenced(execution, lock)
