"""Liveness from memory, readiness from what was answered lately."""

from __future__ import annotations

import pytest

from shared.runtime.health import Health, Pulse
from shared.runtime.probes import Probe


class Now:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_process_is_live_while_it_boots_and_drains_and_ready_only_between() -> None:
    health = Health()
    health.boot_step("waiting for the schema")
    assert health.live().ok
    assert health.ready().reasons == {"process": "booting: waiting for the schema"}
    health.booted()
    assert health.ready().ok
    health.drain()
    assert health.live().ok
    assert health.ready().reasons == {"process": "draining"}


def test_a_failed_check_gives_its_reason() -> None:
    health = Health()
    health.booted()
    health.add_live("loop", lambda: "has not turned for 80 s")
    health.add_ready("database", lambda: None)
    assert health.live().reasons == {"loop": "has not turned for 80 s"}
    assert health.ready().ok


def test_a_check_that_raises_has_failed() -> None:
    def check() -> str | None:
        raise RuntimeError("broken")

    health = Health()
    health.add_live("odd", check)
    report = health.live()
    assert not report.ok
    assert "RuntimeError" in report.reasons["odd"]


def test_a_detail_decides_nothing_even_when_it_cannot_be_read() -> None:
    def detail() -> object:
        raise KeyError("x")

    health = Health()
    health.add_detail("queue", lambda: 3)
    health.add_detail("odd", detail)
    report = health.live()
    assert report.ok
    assert report.details == {"queue": 3, "odd": "unreadable: KeyError"}


def test_a_pulse_is_good_until_it_is_too_old() -> None:
    now = Now()
    pulse = Pulse(clock=now)
    check = pulse.within(75.0, "last turn")
    now.seconds += 75.0
    assert check() is None
    now.seconds += 1.0
    assert check() == "last turn: 76 s ago"
    pulse.beat()
    assert check() is None


def test_a_pulse_that_never_beat_is_not_good() -> None:
    assert Pulse(started=False).within(10.0, "last answer")() == "last answer: not yet"


def test_a_probe_beats_only_when_it_is_answered() -> None:
    answers = iter([True, False, True])

    def ask() -> None:
        if not next(answers):
            raise ConnectionError("refused")

    probe = Probe("database", ask)
    assert probe.pulse.age_seconds is None
    assert probe.run_once()
    first = probe.pulse.age_seconds
    assert first is not None
    assert not probe.run_once()
    assert probe.run_once()


@pytest.mark.parametrize("error", [ConnectionError("x"), ValueError("y")])
def test_no_error_ends_a_probe(error: Exception) -> None:
    def ask() -> None:
        raise error

    assert not Probe("redis", ask).run_once()
