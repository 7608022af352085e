"""Stages: in order, each with its share, none able to hold up the next."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from shared.core.clock import monotonic
from shared.runtime.shutdown import Stage, StopRequest, run_stages


def test_stages_run_in_order_with_their_shares() -> None:
    seen: list[tuple[str, float]] = []

    def note(name: str) -> Callable[[float], object]:
        return lambda seconds: seen.append((name, seconds))

    outcome = run_stages(
        [Stage("http", 1, note("http")), Stage("work", 3, note("work"))], total_seconds=8.0
    )
    assert [name for name, _ in seen] == ["http", "work"]
    assert outcome.done == ("http", "work")
    assert outcome.is_clean
    assert seen[0][1] == pytest.approx(2.0, abs=0.2)


def test_time_that_a_stage_does_not_use_falls_to_the_next() -> None:
    given: list[float] = []
    run_stages(
        [Stage("quick", 1, lambda _: None), Stage("slow", 1, given.append)], total_seconds=4.0
    )
    assert given[0] == pytest.approx(4.0, abs=0.3)


def test_a_stage_that_overruns_is_left_behind_and_the_next_one_runs() -> None:
    release = threading.Event()
    ran: list[str] = []
    began = monotonic()
    outcome = run_stages(
        [
            Stage("stuck", 1, lambda _: release.wait(30.0)),
            Stage("last", 1, lambda _: ran.append("last")),
        ],
        total_seconds=0.4,
    )
    took = monotonic() - began
    release.set()
    assert outcome.overran == ("stuck",)
    assert ran == ["last"]
    assert took < 5.0


def test_a_stage_that_raises_does_not_keep_the_next_one_from_running() -> None:
    def fail(_seconds: float) -> None:
        raise SystemExit(3)

    ran: list[str] = []
    outcome = run_stages(
        [Stage("bad", 1, fail), Stage("last", 1, lambda _: ran.append("last"))], total_seconds=2.0
    )
    assert outcome.failed == ("bad",)
    assert outcome.done == ("last",)
    assert not outcome.is_clean


def test_the_first_reason_to_stop_stays() -> None:
    stop = StopRequest()
    assert not stop.wait(0.0)
    assert not stop.event.is_set()
    stop.request("SIGTERM")
    stop.request("SIGINT")
    assert stop.wait(1.0)
    assert stop.wait(1.0)
    assert stop.reason == "SIGTERM"
    assert stop.event.is_set()


def test_many_signals_while_the_main_thread_waits_do_not_lock_it_up() -> None:
    stop = StopRequest()
    old = signal.signal(signal.SIGUSR1, lambda *_: stop.request("again"))
    try:
        for _ in range(200):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.wait(5.0)
        for _ in range(200):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.wait(0.0)
    finally:
        signal.signal(signal.SIGUSR1, old)
