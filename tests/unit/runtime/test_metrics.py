"""What the outbox tells becomes numbers that Prometheus can read."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from shared.outbox.signals import (
    Claimed,
    DispatchFailed,
    Ended,
    EndedWithoutAnswer,
    LeaseLossSeen,
    LeasesRecovered,
    Redelivered,
    Signals,
    StaleMessages,
    WindowMeasured,
)
from shared.runtime.gauges import NodeSeen, SharedGauges
from shared.runtime.metrics import Metrics
from shared.runtime.statistics import QueueCounts

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(metrics: Metrics) -> Samples:
    text = generate_latest(metrics.registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


def test_every_signal_is_counted() -> None:
    metrics, signals = Metrics("upload"), Signals()
    signals.subscribe(metrics.on_signal)
    signals.emit(Claimed("upload", (0.001, 2.0)))
    signals.emit(Ended("upload", "upload.store", "completed", True, (0.1, 0.2, 0.3)))
    signals.emit(Ended("upload", "upload.store", "retry", False, (0.1,)))
    signals.emit(EndedWithoutAnswer("upload", "upload.store", "cancelled", 9))
    signals.emit(DispatchFailed(4, unknown=True))
    signals.emit(Redelivered("message_gone", 5))
    signals.emit(LeasesRecovered(6, failed=2))
    signals.emit(LeaseLossSeen(7))
    signals.emit(StaleMessages(8))
    signals.emit(WindowMeasured("upload", "eu", 25, 100))
    metrics.observe_pool_wait(0.5)

    found = samples(metrics)
    store = {"queue": "upload", "kind": "upload.store"}
    assert value(found, "blox_queue_wait_seconds_count", queue="upload") == 2
    assert value(found, "blox_tasks_finished_total", outcome="completed", **store) == 3
    assert value(found, "blox_executions_total", outcome="completed", **store) == 3
    assert value(found, "blox_executions_total", outcome="retry", **store) == 1
    assert value(found, "blox_tasks_finished_total", outcome="cancelled", **store) == 9
    assert value(found, "blox_execution_seconds_count", **store) == 4
    assert value(found, "blox_dispatch_failures_total", result="unknown") == 4
    assert value(found, "blox_redeliveries_total", reason="message_gone") == 5
    assert value(found, "blox_lease_recoveries_total", result="failed") == 2
    assert value(found, "blox_lease_recoveries_total", result="rescheduled") == 4
    assert value(found, "blox_lease_losses_total") == 7
    assert value(found, "blox_stale_messages_total") == 8
    assert value(found, "blox_window_fill_ratio", queue="upload", region="eu") == 0.25
    assert value(found, "blox_database_pool_wait_seconds_count") == 1
    assert not any(
        name == "blox_tasks_finished_total" and dict(labels)["outcome"] == "retry"
        for name, labels in found
    )


def test_no_signal_is_left_without_a_counter() -> None:
    import typing

    from shared.outbox import signals

    assert set(Metrics("x")._handlers) >= set(typing.get_args(signals.Signal))


def test_two_processes_in_one_interpreter_do_not_share_a_registry() -> None:
    one, two = Metrics("api"), Metrics("api")
    one.on_signal(StaleMessages(3))
    assert value(samples(two), "blox_stale_messages_total") == 0


def test_the_build_is_named() -> None:
    assert any(name == "blox_build_info" for name, _ in samples(Metrics("api")))


def test_shared_gauges_show_the_last_measurement_and_forget_the_one_before() -> None:
    metrics = Metrics("scheduler")
    gauges = SharedGauges(metrics.registry)
    gauges.update(
        [QueueCounts("upload", "", {"pending": 3, "failed": 1}, 2, 7.5)],
        [NodeSeen("n1", ("upload", "upload.eu")), NodeSeen("n2", ("upload",))],
    )
    found = samples(metrics)
    assert value(found, "blox_tasks", queue="upload", region="", state="pending") == 3
    assert value(found, "blox_tasks_retrying", queue="upload", region="") == 2
    assert value(found, "blox_oldest_pending_age_seconds", queue="upload", region="") == 7.5
    assert value(found, "blox_consumers", queue="upload", region="") == 2
    assert value(found, "blox_consumers", queue="upload", region="eu") == 1
    assert value(found, "blox_node_info", node="n1", region="eu", queues="upload,upload.eu") == 1

    gauges.update([], [], {"channel:a": 2})
    assert samples(metrics)["blox_slots_in_use", (("name", "channel:a"),)] == 2
    gauges.update([], [])
    assert not any(name in {"blox_tasks", "blox_consumers"} for name, _ in samples(metrics))
