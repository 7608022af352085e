"""Job 8's half for replicas: rules against locations, removed rules, and what is really there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from shared.catalog.context import Catalogue
from shared.catalog.replicas.letting_go import LettingGo
from shared.catalog.replicas.limits import ReplicaLimits
from shared.catalog.replicas.looking import Looking, Names
from shared.catalog.replicas.tending import tend
from shared.catalog.replicas.walking import RuleWalk
from shared.outbox.db import Database


class ReplicaJob:
    """What one turn of the job does. Safe in several processes; every step asks under a lock."""

    def __init__(
        self, db: Database, catalogue: Catalogue, channels: Names, limits: ReplicaLimits
    ) -> None:
        self._db = db
        self._catalogue = catalogue
        self._limits = limits
        self._walk = RuleWalk(db, catalogue, limits)
        self._go = LettingGo(db, channels, limits)
        self._look = Looking(db, catalogue, channels, limits)

    def run_once(self, check: Callable[[], None]) -> Counter[str]:
        """Take one turn; returns what was counted.

        Without the replica service only looks are taken: losses then wait, or go to the backups.
        """
        counts: Counter[str] = Counter()
        if self._catalogue.serves("replica"):
            counts += tend(self._db, self._catalogue, self._limits, check)
            counts += self._walk.run(check)
            counts += self._go.run(check)
        counts += self._look.run(check)
        return counts
