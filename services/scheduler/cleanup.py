"""Job 6, staging_cleanup: what executions and requests that died left behind.

Safe on many schedulers at once: every removal is asked for again under its row's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from services.scheduler.clock import Tick
from services.scheduler.telling import tell
from shared.catalog.sweeps.context import SweepContext, SweepLimits
from shared.catalog.sweeps.sweeper import Sweeper
from shared.core.clock import Deadline
from shared.core.errors import ShuttingDown, UnavailableError
from shared.outbox.settling import kind_of
from shared.runtime.assembly import Parts
from shared.runtime.settings import Settings

#: Seconds that one pass may take; what is left waits for the next one.
PASS_SECONDS = 1800.0

_log = structlog.get_logger("scheduler")


def staging_cleanup(parts: Parts) -> Tick:
    """Sweep staging, intents, open uploads, blobs, reviews and unheard ends."""
    sweeper = build_sweeper(parts)

    def act(stopping: threading.Event) -> None:
        report = sweeper.run_once(deadline=Deadline(PASS_SECONDS), check=_check(stopping))
        for name, counts in report.counts.items():
            tell(_log, "sweep_done", counts, sweep=name)
        if report.errors:
            raise UnavailableError("sweeps failed", **report.errors)

    return Tick(
        "staging_cleanup",
        act,
        every_seconds=parts.settings.scheduler.cleanup_seconds,
        limit_seconds=PASS_SECONDS + parts.settings.health.loop_seconds,
    )


def build_sweeper(parts: Parts) -> Sweeper:
    """Return the sweeps of this process."""
    for queue in ("backup", "delete", "notify", "origin", "replica", "restore", "review", "upload"):
        parts.outbox.register(kind_of(queue))

    def retry(task_id: int) -> object:
        return parts.outbox.retry(task_id, by="staging_cleanup", reason="a settle task had failed")

    context = SweepContext(
        db=parts.outbox.context.db,
        catalogue=parts.catalogue,
        channels=parts.channels,
        staging=parts.staging,
        limits=limits(parts.settings),
    )
    return Sweeper(context, retry=retry)


def limits(settings: Settings) -> SweepLimits:
    """Return the sweeps' limits as the settings have them."""
    sweeps = settings.sweeps
    return SweepLimits(
        min_age_seconds=sweeps.min_age_seconds,
        staging_age_seconds=settings.staging.max_age_seconds,
        trash_seconds=settings.staging.trash_seconds,
        tombstone_seconds=sweeps.tombstone_seconds,
        max_deletions=sweeps.max_deletions,
        notification_days=sweeps.notification_days,
        dry_run=sweeps.dry_run,
    )


def _check(stopping: threading.Event) -> Callable[[], None]:
    def check() -> None:
        if stopping.is_set():
            raise ShuttingDown("the scheduler stops")

    return check
