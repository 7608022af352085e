"""What the scheduler does regularly. Every tick is safe to run on many schedulers at once."""

from __future__ import annotations

import threading

import redis
import structlog

from services.scheduler.clock import Tick
from shared.catalog.channel_slots import slots_in_use
from shared.catalog.draining import move_stragglers
from shared.catalog.parked import count_parked
from shared.core.clock import Deadline
from shared.core.errors import UnavailableError
from shared.outbox.compensator import Compensator
from shared.outbox.nodes import live_nodes
from shared.runtime.assembly import Parts
from shared.runtime.gauges import NodeSeen, SharedGauges
from shared.runtime.metrics import Metrics
from shared.runtime.statistics import count_tasks

_log = structlog.get_logger("scheduler")


def redelivery(compensator: Compensator, parts: Parts) -> Tick:
    """Bring back what fell between two steps of the outbox."""

    def act(_stopping: threading.Event) -> None:
        try:
            compensator.scan_once()
        except redis.RedisError as error:
            raise UnavailableError("Redis does not answer", error=str(error)) from error

    return Tick(
        "task_redelivery",
        act,
        every_seconds=parts.settings.outbox.scan_seconds,
        limit_seconds=parts.settings.health.loop_seconds,
    )


def drained_regions(parts: Parts) -> Tick:
    """Move what waits in a drained region all the same, so that it waits for nobody."""
    limit_seconds = parts.settings.health.loop_seconds

    def act(_stopping: threading.Event) -> None:
        deadline = Deadline(limit_seconds / 2)
        moved = move_stragglers(parts.outbox.context, deadline=deadline)
        for region, count in moved.items():
            _log.info("stragglers_moved", region=region, tasks=count)

    return Tick(
        "drained_regions",
        act,
        every_seconds=parts.settings.scheduler.drain_seconds,
        limit_seconds=limit_seconds,
    )


def statistics(parts: Parts, metrics: Metrics) -> Tick:
    """Measure what the whole system holds, for the gauges that only the scheduler exports."""
    gauges = SharedGauges(metrics.registry)
    parked = metrics.gauge(
        "locations_parked", "Copies that a channel has refused to delete so far", "channel"
    )
    # Channels that had any: their count goes back to 0.
    seen: set[str] = set()
    staging = metrics.gauge("staging_used_ratio", "How full the file system of staging is")

    def act(_stopping: threading.Event) -> None:
        context = parts.outbox.context
        nodes = [
            NodeSeen(node.name, queue_names=tuple(sorted(node.queues)))
            for node in live_nodes(context)
        ]
        gauges.update(count_tasks(context.db), nodes, slots_in_use(parts.channels, context.places))
        used_ratio = parts.staging.used_ratio()
        if used_ratio is not None:
            staging.set(used_ratio)
        counts = context.db.run_session(count_parked, read_only=True)
        for channel in seen | counts.keys():
            parked.labels(channel).set(counts.get(channel, 0))
        seen.update(counts)

    return Tick(
        "statistics_refresh",
        act,
        every_seconds=parts.settings.scheduler.statistics_seconds,
        limit_seconds=parts.settings.health.loop_seconds,
    )
