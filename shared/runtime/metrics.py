"""The numbers of one process, in Prometheus's base units with the prefix `blox_`.

Code emits signals; here they become counters. What the whole system shares (depths, ages, nodes)
is in `gauges.py` and exported by the scheduler alone, so that nothing is counted twice.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from shared.outbox.signals import (
    Claimed,
    DispatchFailed,
    Ended,
    EndedWithoutAnswer,
    LeaseLossSeen,
    LeasesRecovered,
    Redelivered,
    Signal,
    StaleMessages,
    WindowMeasured,
)

#: From a no-op to an upload of an hour.
_EXECUTION_BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300, 1800, 7200)
_WAIT_BUCKETS = (0.002, 0.005, 0.01, 0.05, 0.25, 1, 5, 30, 120, 600, 3600)
_POOL_BUCKETS = (0.001, 0.01, 0.1, 1, 10)


def product_version() -> str:
    """Return the version of the installed product; a checkout that is not installed says `dev`."""
    try:
        return version("cloudblox")
    except PackageNotFoundError:
        return "dev"


class Metrics:
    """The registry of a process and what every process counts. One per process."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        info = self.gauge("build_info", "What runs here; always 1", "service", "version", "python")
        info.labels(service, product_version(), platform.python_version()).set(1)
        self._finished = self.counter(
            "tasks_finished", "Tasks that ended here", "queue", "kind", "outcome"
        )
        self._executions = self.counter(
            "executions", "Executions that ended here with an answer", "queue", "kind", "outcome"
        )
        self._seconds = self.histogram(
            "execution_seconds", "How long executions ran", _EXECUTION_BUCKETS, "queue", "kind"
        )
        self._waits = self.histogram(
            "queue_wait_seconds",
            "From the later of created and due to the start",
            _WAIT_BUCKETS,
            "queue",
        )
        self._dispatch_failures = self.counter(
            "dispatch_failures", "Messages that Redis refused or did not confirm", "result"
        )
        self._redeliveries = self.counter("redeliveries", "Rows that a scan brought back", "reason")
        self._recoveries = self.counter(
            "lease_recoveries", "Running rows whose lease had expired", "result"
        )
        self._losses = self.counter(
            "lease_losses", "Executions of this process that lost their task"
        )
        self._stale = self.counter("stale_messages", "Messages of a dispatch that was over")
        self._fill = self.gauge(
            "window_fill_ratio", "Fullness of a queue's window", "queue", "region"
        )
        self._pool_wait = self.histogram(
            "database_pool_wait_seconds", "Waiting for a database connection", _POOL_BUCKETS
        )
        self._cache_events = self.counter("cache_events", "What caches did", "cache", "event")
        self._handlers: dict[type[Signal], Callable[[Any], None]] = {
            Claimed: self._on_claimed,
            Ended: self._on_ended,
            EndedWithoutAnswer: self._on_ended_without_answer,
            DispatchFailed: self._on_dispatch_failed,
            Redelivered: self._on_redelivered,
            LeasesRecovered: self._on_leases_recovered,
            LeaseLossSeen: self._on_lease_loss,
            StaleMessages: self._on_stale,
            WindowMeasured: self._on_window,
        }

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Make a counter; `_total` is added by the format."""
        return Counter(f"blox_{name}", text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Make a gauge."""
        return Gauge(f"blox_{name}", text, labels, registry=self.registry)

    def histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        """Make a histogram."""
        return Histogram(f"blox_{name}", text, labels, buckets=buckets, registry=self.registry)

    def show(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Export a number that is read when it is asked for."""
        self.gauge(name, text).set_function(read)

    def count_cache(self, cache: str) -> Callable[[str], None]:
        """Return what counts the events of one cache."""
        return lambda event: self._cache_events.labels(cache, event).inc()

    def observe_pool_wait(self, seconds: float) -> None:
        """Count one wait for a database connection."""
        self._pool_wait.observe(seconds)

    def on_signal(self, signal: Signal) -> None:
        """Count what the outbox tells: `outbox.subscribe(metrics.on_signal)`."""
        self._handlers[type(signal)](signal)

    def _on_claimed(self, signal: Claimed) -> None:
        waits = self._waits.labels(signal.queue)
        for seconds in signal.waits_seconds:
            waits.observe(max(0.0, seconds))

    def _on_ended(self, signal: Ended) -> None:
        labels = (signal.queue, signal.kind, signal.outcome)
        count = len(signal.seconds)
        self._executions.labels(*labels).inc(count)
        if signal.final:
            self._finished.labels(*labels).inc(count)
        histogram = self._seconds.labels(signal.queue, signal.kind)
        for seconds in signal.seconds:
            histogram.observe(max(0.0, seconds))

    def _on_ended_without_answer(self, signal: EndedWithoutAnswer) -> None:
        self._finished.labels(signal.queue, signal.kind, signal.outcome).inc(signal.count)

    def _on_dispatch_failed(self, signal: DispatchFailed) -> None:
        result = "unknown" if signal.unknown else "refused"
        self._dispatch_failures.labels(result).inc(signal.count)

    def _on_redelivered(self, signal: Redelivered) -> None:
        self._redeliveries.labels(signal.reason).inc(signal.count)

    def _on_leases_recovered(self, signal: LeasesRecovered) -> None:
        self._recoveries.labels("failed").inc(signal.failed)
        self._recoveries.labels("rescheduled").inc(signal.count - signal.failed)

    def _on_lease_loss(self, signal: LeaseLossSeen) -> None:
        self._losses.inc(signal.count)

    def _on_stale(self, signal: StaleMessages) -> None:
        self._stale.inc(signal.count)

    def _on_window(self, signal: WindowMeasured) -> None:
        ratio = signal.fullness / signal.size if signal.size else 0.0
        self._fill.labels(signal.queue, signal.region).set(ratio)
