"""The gauges that belong to the whole system, exported by the scheduler alone.

They are collected from the last measurement, so that a queue or a node that is gone leaves no line
behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from shared.runtime.statistics import QueueCounts


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A living process, as its row says. Queue names are those of Redis: `upload.eu-west`."""

    node: str
    queue_names: tuple[str, ...]

    @property
    def places(self) -> list[tuple[str, str]]:
        """Return (queue, region) of all that it consumes."""
        parts = (name.partition(".") for name in self.queue_names)
        return [(queue, region) for queue, _, region in parts]

    @property
    def region(self) -> str:
        """The region that it serves beside the base queues."""
        return next((region for _, region in self.places if region), "")


class SharedGauges(Collector):
    """Holds the last measurement and renders it when it is asked for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counts: Sequence[QueueCounts] = ()
        self._nodes: Sequence[NodeSeen] = ()
        self._slots: Mapping[str, int] = {}
        registry.register(self)

    def update(
        self,
        counts: Sequence[QueueCounts],
        nodes: Sequence[NodeSeen],
        slots: Mapping[str, int] | None = None,
    ) -> None:
        """Replace the measurement; `slots` are the places in use by resource."""
        self._counts, self._nodes, self._slots = counts, nodes, slots or {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Render it."""
        yield from self._tasks()
        yield from self._consumers()
        in_use = GaugeMetricFamily(
            "blox_slots_in_use", "Places held or reserved on a limited resource", labels=("name",)
        )
        for name, count in sorted(self._slots.items()):
            in_use.add_metric((name,), count)
        yield in_use

    def _tasks(self) -> Iterator[GaugeMetricFamily]:
        tasks = GaugeMetricFamily(
            "blox_tasks", "Tasks by state", labels=("queue", "region", "state")
        )
        retrying = GaugeMetricFamily(
            "blox_tasks_retrying",
            "Scheduled tasks that have failed before",
            labels=("queue", "region"),
        )
        oldest = GaugeMetricFamily(
            "blox_oldest_pending_age_seconds",
            "How long the oldest pending task has been due",
            labels=("queue", "region"),
        )
        for counts in self._counts:
            labels = (counts.queue, counts.region)
            for state, count in counts.by_state.items():
                tasks.add_metric((*labels, state), count)
            retrying.add_metric(labels, counts.retrying)
            oldest.add_metric(labels, counts.oldest_pending_seconds)
        yield from (tasks, retrying, oldest)

    def _consumers(self) -> Iterator[GaugeMetricFamily]:
        info = GaugeMetricFamily(
            "blox_node_info", "Living processes; always 1", labels=("node", "region", "queues")
        )
        consumers = GaugeMetricFamily(
            "blox_consumers", "Living workers of a queue", labels=("queue", "region")
        )
        count: Counter[tuple[str, str]] = Counter()
        for node in self._nodes:
            info.add_metric((node.node, node.region, ",".join(node.queue_names)), 1)
            count.update(node.places)
        for labels, number in sorted(count.items()):
            consumers.add_metric(labels, number)
        yield from (info, consumers)
