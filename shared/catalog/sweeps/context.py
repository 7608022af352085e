"""What all sweeps share: their limits, the budget of one pass, and what a pass did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from shared.catalog.context import Catalogue
from shared.catalog.erasing import ChannelBook
from shared.core.clock import Deadline
from shared.outbox.db import Database
from shared.storage.staging import Staging

#: Rows that one statement reads.
PAGE_ROWS = 500

_log = structlog.get_logger("catalog.sweeps")


class Channels(ChannelBook, Protocol):
    """A book of channels that also lists them."""

    def names(self) -> list[str]:
        """Return the names of all channels."""


class Gone:
    """Channels that removed content was on and that the catalogue does not know now, told once."""

    def __init__(self, sweep: str) -> None:
        self._sweep = sweep
        self._told: set[str] = set()

    def note(self, channel: str) -> None:
        """Log that a channel's probes wait, if nobody was told yet."""
        if channel not in self._told:
            self._told.add(channel)
            _log.warning("probes_wait_for_channel", sweep=self._sweep, channel=channel)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLimits:
    """Ages and bounds, all of them settings.

    `min_age_seconds`: no intent and no upload is looked at before; `staging_age_seconds`: no file
    in staging. `trash_seconds`: how long an unnamed file lies in the trash. `tombstone_seconds`:
    the longest time a write may be on the wire. `max_deletions` bounds what one pass removes from
    channels and staging, each sweep for itself. `notification_days`: how long events and their
    ended deliveries are kept, 0 for ever. `dry_run` only counts and logs.
    """

    min_age_seconds: float = 3600.0
    staging_age_seconds: float = 86_400.0
    trash_seconds: float = 7 * 86_400.0
    tombstone_seconds: float = 86_400.0
    max_deletions: int = 1000
    notification_days: float = 30.0
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepContext:
    """What the sweeps work with."""

    db: Database
    catalogue: Catalogue
    channels: Channels
    staging: Staging
    limits: SweepLimits


@dataclass(slots=True)
class Pass:
    """One pass of one sweep; `check` raises when the process stops, `deadline` bounds the calls."""

    name: str
    limits: SweepLimits
    deadline: Deadline
    check: Callable[[], None]
    counts: Counter[str] = field(default_factory=Counter)

    def may_remove(self, what: str, **facts: object) -> bool:
        """Count one removal and tell whether to do it: not in a dry run, not past the cap."""
        self.check()
        if self.counts["removals"] >= self.limits.max_deletions:
            self.counts["left_for_next_pass"] += 1
            return False
        self.counts["removals"] += 1
        self.counts[what] += 1
        _log.info("swept", sweep=self.name, what=what, dry_run=self.limits.dry_run, **facts)
        return not self.limits.dry_run

    @property
    def is_full(self) -> bool:
        """Tell whether the cap of this pass is reached."""
        return self.counts["removals"] >= self.limits.max_deletions

    @property
    def is_over(self) -> bool:
        """Tell whether the rest is for the next pass: the cap is reached, or the time is up."""
        return self.is_full or self.deadline.expired()
