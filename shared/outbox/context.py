"""What every part of one outbox shares: made once by `Outbox`, handed to each part."""

from __future__ import annotations

from dataclasses import dataclass, field

import redis

from shared.outbox.db import Database
from shared.outbox.execution import Executions
from shared.outbox.kinds import Kinds
from shared.outbox.ports import Limits, Places
from shared.outbox.scripts import Scripts
from shared.outbox.settings import OutboxSettings
from shared.outbox.signals import Signals


@dataclass(frozen=True, slots=True)
class OutboxContext:
    """One outbox's database, Redis, names and numbers.

    `redis` answers within `settings.redis_timeout_seconds` and never repeats a command by itself.
    `node` is this process's name; an owner is the node, a colon and a fresh part per claim.
    """

    db: Database
    redis: redis.Redis
    scripts: Scripts
    namespace: str
    node: str
    kinds: Kinds
    signals: Signals
    settings: OutboxSettings
    executions: Executions
    #: Places on resources and how many there are; without them nothing is limited.
    places: Places | None = None
    limits: Limits | None = None
    #: The tenant that this process has served last, by resource.
    turns: dict[str, str] = field(default_factory=dict)

    def rename(self, node: str) -> None:
        """Take another name; before anything has used the first."""
        object.__setattr__(self, "node", node)
