"""The ordered end of a process: named stages, each with a share of the total time.

A stage that overruns its time is logged and left behind in its thread; the next one begins.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from shared.core.clock import Deadline, monotonic

#: Does the stage's work within the seconds that it is given.
Action = Callable[[float], object]

_log = structlog.get_logger("shutdown")


@dataclass(frozen=True, slots=True)
class Stage:
    """One step. `share` is its part of the total; what it does not use falls to the next ones."""

    name: str
    share: float
    action: Action


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the stages went, in their order."""

    done: tuple[str, ...]
    failed: tuple[str, ...]
    overran: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Tell whether every stage ended by itself."""
        return not self.failed and not self.overran


class StopRequest:
    """Asks a process to end. The first reason stays; a second signal changes nothing."""

    def __init__(self) -> None:
        # An Event must not be set inside a signal handler: the interrupted thread may hold its
        # lock. A SimpleQueue may be filled anywhere.
        self._reasons: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._event = threading.Event()
        self.reason = ""

    def request(self, reason: str) -> None:
        """Ask for the end; from any thread, also inside a signal handler."""
        self._reasons.put(reason)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the end is asked for, at most `seconds`. Only for the main thread."""
        if not self._event.is_set():
            try:
                self.reason = self._reasons.get(timeout=seconds)
            except queue.Empty:
                return False
            self._event.set()
        return True

    @property
    def event(self) -> threading.Event:
        """The same for other threads: set once the main thread has seen the request."""
        return self._event


def run_stages(stages: list[Stage], total_seconds: float) -> Outcome:
    """Run the stages one after another, in `total_seconds` together.

    Never raises: an error of a stage is logged, and the next one runs.
    """
    whole = sum(stage.share for stage in stages) or 1.0
    done: list[str] = []
    failed: list[str] = []
    overran: list[str] = []
    until = 0.0
    clock = Deadline(total_seconds)
    for stage in stages:
        until += stage.share / whole * total_seconds
        seconds = max(0.05, until - (total_seconds - clock.remaining()))
        answer = _run_stage(stage, seconds)
        (done if answer is None else failed if answer else overran).append(stage.name)
    return Outcome(tuple(done), tuple(failed), tuple(overran))


def _run_stage(stage: Stage, seconds: float) -> bool | None:
    """Return None when it ended well, True when it failed, False when it was left behind."""
    failures: list[BaseException] = []

    def act() -> None:
        try:
            stage.action(seconds)
        except BaseException as error:
            failures.append(error)

    began = monotonic()
    thread = threading.Thread(target=act, name=f"shutdown-{stage.name}", daemon=True)
    thread.start()
    thread.join(seconds)
    took = round(monotonic() - began, 3)
    if thread.is_alive():
        _log.error("shutdown_stage_overran", stage=stage.name, seconds=round(seconds, 3))
        return False
    if failures:
        _log.error("shutdown_stage_failed", stage=stage.name, exc_info=failures[0])
        return True
    _log.debug("shutdown_stage_done", stage=stage.name, seconds=took)
    return None
