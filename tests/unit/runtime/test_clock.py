"""The scheduler's ticks: one at a time, counted, and in sight when they hang."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from services.scheduler.clock import Clock, Tick, watch
from services.scheduler.telling import tell
from shared.core.errors import UnavailableError
from shared.runtime.health import Health, Pulse
from shared.runtime.metrics import Metrics
from tests.support.eventually import eventually, never


@pytest.fixture
def stopping() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def make(act: object, *, every_seconds: float = 0.05, limit_seconds: float = 75.0) -> Tick:
    assert callable(act)
    return Tick("job", act, every_seconds=every_seconds, limit_seconds=limit_seconds)


def sample(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"job": "job"})


def test_a_tick_is_called_again_and_again(stopping: threading.Event) -> None:
    calls: list[int] = []
    clock = Clock([make(lambda _: calls.append(1))], stopping)
    clock.start()
    eventually(lambda: len(calls) >= 3)
    clock.close(5.0)
    count = len(calls)
    never(lambda: len(calls) > count, during=0.2)


def test_a_slow_tick_is_never_called_twice_at_once(stopping: threading.Event) -> None:
    inside, most, calls = 0, 0, 0
    guard = threading.Lock()

    def act(stop: threading.Event) -> None:
        nonlocal inside, most, calls
        with guard:
            inside += 1
            calls += 1
            most = max(most, inside)
        stop.wait(0.12)
        with guard:
            inside -= 1

    clock = Clock([make(act)], stopping)
    clock.start()
    eventually(lambda: calls >= 3)
    clock.close(5.0)
    assert most == 1


def test_failures_are_counted_until_it_works_again(stopping: threading.Event) -> None:
    broken = True

    def act(_stop: threading.Event) -> None:
        if broken:
            raise UnavailableError("the database does not answer")

    tick, health, metrics = make(act), Health(), Metrics("scheduler")
    watch([tick], health, metrics)
    assert not tick.run(stopping)
    assert not tick.run(stopping)
    assert sample(metrics, "blox_job_consecutive_failures") == 2
    assert sample(metrics, "blox_job_last_success_timestamp_seconds") == 0
    assert health.live().ok, "an outage elsewhere must not restart the scheduler"
    broken = False
    assert tick.run(stopping)
    assert sample(metrics, "blox_job_consecutive_failures") == 0
    assert (sample(metrics, "blox_job_last_success_timestamp_seconds") or 0) > 0


def test_an_unexpected_error_does_not_end_the_ticks(stopping: threading.Event) -> None:
    def act(_stop: threading.Event) -> None:
        raise ZeroDivisionError

    tick = make(act)
    clock = Clock([tick], stopping)
    clock.start()
    eventually(lambda: tick.failures >= 2)
    clock.close(5.0)


def test_a_tick_that_hangs_ends_liveness_and_names_itself(stopping: threading.Event) -> None:
    seconds = [0.0]
    tick, health = make(lambda stop: stop.wait(30.0), limit_seconds=10.0), Health()
    tick.turned = Pulse(clock=lambda: seconds[0])
    watch([tick], health, Metrics("scheduler"))
    clock = Clock([tick], stopping)
    clock.start()
    eventually(lambda: tick.is_running)
    assert health.live().ok
    seconds[0] = 11.0
    assert health.live().reasons == {"job": "last turn: 11 s ago"}
    assert health.live().details["job_last_success"] is None
    clock.close(5.0)


def test_closing_does_not_wait_for_ever_for_a_tick_that_ignores_it(
    stopping: threading.Event,
) -> None:
    release = threading.Event()
    tick = make(lambda _: release.wait(30.0))
    clock = Clock([tick], stopping)
    clock.start()
    eventually(lambda: tick.is_running)
    with pytest.raises(RuntimeError, match="still running: job"):
        clock.close(0.1)
    release.set()
    eventually(lambda: not tick.is_running)


def test_a_turn_tells_what_it_has_done_and_no_zeros() -> None:
    log = structlog.get_logger("scheduler")
    with capture_logs() as seen:
        tell(log, "sweep_done", {"forgotten": 2, "failed": 0}, sweep="bodies")
        tell(log, "sweep_done", {"forgotten": 0}, sweep="answers")
        tell(log, "sweep_done", {})
        tell(log, "objects_expired", {"held": 3, "deleted": 0}, looks=("held",))
        tell(log, "objects_expired", {"held": 3, "deleted": 1}, looks=("held",))
    assert seen == [
        {"event": "sweep_done", "log_level": "info", "sweep": "bodies", "forgotten": 2},
        {"event": "sweep_done", "log_level": "debug", "sweep": "answers"},
        {"event": "sweep_done", "log_level": "debug"},
        {"event": "objects_expired", "log_level": "debug", "held": 3},
        {"event": "objects_expired", "log_level": "info", "held": 3, "deleted": 1},
    ]
