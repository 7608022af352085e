"""Job 8, replica_backup, its half for replicas: rules against locations, losses, and the gauges.

Safe on many schedulers at once: every step asks again under its row's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import structlog
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy.orm import Session

from services.scheduler.clock import Tick
from services.scheduler.telling import tell
from shared.catalog.models import LocationAudit
from shared.catalog.replicas.job import ReplicaJob
from shared.catalog.replicas.limits import ReplicaLimits
from shared.catalog.replicas.status import (
    ChannelCounts,
    audits,
    channel_counts,
    missing_copies,
)
from shared.core.errors import ShuttingDown
from shared.runtime.assembly import Parts
from shared.runtime.metrics import Metrics
from shared.runtime.settings import Settings

#: Seconds that one turn may take; what is left waits for the next one.
TURN_SECONDS = 1800.0

_log = structlog.get_logger("scheduler")


def replica_backup(parts: Parts, metrics: Metrics) -> Tick:
    """Plan missing copies, let go of unwanted ones, look at what the channels really have."""
    gauges = ReplicaGauges()
    metrics.registry.register(gauges)
    db = parts.outbox.context.db
    job = ReplicaJob(db, parts.catalogue, parts.channels, limits(parts.settings))

    def act(stopping: threading.Event) -> None:
        counts = job.run_once(_check(stopping))
        tell(_log, "replicas_looked_after", counts, looks=("checked", "compared"))
        db.run_session(gauges.measure, read_only=True)

    return Tick(
        "replica_backup",
        act,
        every_seconds=parts.settings.scheduler.replica_seconds,
        limit_seconds=TURN_SECONDS + parts.settings.health.loop_seconds,
    )


def limits(settings: Settings) -> ReplicaLimits:
    """Return the job's limits as the settings have them."""
    own = settings.replicas
    return ReplicaLimits(
        backlog=own.backlog,
        versions=own.versions,
        retry_seconds=own.retry_seconds,
        grace_seconds=settings.grace_seconds,
        sample=own.sample,
        again_seconds=own.again_seconds,
        deep_ratio=own.deep_ratio,
        deep_bytes=own.deep_bytes,
    )


class ReplicaGauges(Collector):
    """Holds what the last turn measured and renders it when it is asked for."""

    def __init__(self) -> None:
        self._counts: Sequence[ChannelCounts] = ()
        self._missing: dict[str, int] = {}
        self._audits: Sequence[LocationAudit] = ()

    def measure(self, session: Session) -> None:
        """Replace the measurement."""
        self._counts = channel_counts(session)
        self._missing = missing_copies(session)
        self._audits = audits(session)
        session.expunge_all()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Render it."""
        replicas = GaugeMetricFamily(
            "blox_replicas", "Copies that wait or have failed", labels=("channel", "state")
        )
        oldest = GaugeMetricFamily(
            "blox_replica_oldest_pending_seconds",
            "How long the oldest copy of a channel has been waiting",
            labels=("channel",),
        )
        for line in self._counts:
            replicas.add_metric((line.channel, "pending"), line.pending)
            replicas.add_metric((line.channel, "failed"), line.failed)
            oldest.add_metric((line.channel,), line.oldest_seconds)
        missing = GaugeMetricFamily(
            "blox_replicas_missing",
            "Copies that the last whole comparison of rules and locations lacked",
            labels=("channel",),
        )
        for channel, count in self._missing.items():
            missing.add_metric((channel,), count)
        suspects = GaugeMetricFamily(
            "blox_locations_suspect",
            "Copies that were not as they should be at the last look",
            labels=("channel",),
        )
        lost = GaugeMetricFamily(
            "blox_locations_lost", "Copies found lost in this pass", labels=("channel",)
        )
        for audit in self._audits:
            suspects.add_metric((audit.channel,), len(audit.suspects or {}))
            lost.add_metric((audit.channel,), audit.lost)
        yield from (replicas, oldest, missing, suspects, lost)


def _check(stopping: threading.Event) -> Callable[[], None]:
    def check() -> None:
        if stopping.is_set():
            raise ShuttingDown("the scheduler stops")

    return check
