"""A transactional outbox for Dramatiq on MySQL, MariaDB and SQLite. See README.md."""

from __future__ import annotations

from shared.core.outcomes import Fail, Retry, Snooze
from shared.outbox.execution import Execution
from shared.outbox.kinds import Kind
from shared.outbox.outbox import Outbox
from shared.outbox.policy import RetryPolicy
from shared.outbox.settings import OutboxSettings
from shared.outbox.states import State

__all__ = [
    "Execution",
    "Fail",
    "Kind",
    "Outbox",
    "OutboxSettings",
    "Retry",
    "RetryPolicy",
    "Snooze",
    "State",
]
