"""Is this process alive, and may it be given work: two questions, kept apart.

Live is answered from this process's memory alone, so that an outage elsewhere restarts nobody.
Ready looks at when the servers answered last; nothing is asked while a probe waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from shared.core.clock import monotonic

#: Answers None when all is well, else a sentence.
Check = Callable[[], str | None]

_log = structlog.get_logger("health")


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to one question; `reasons` maps a failed check to its sentence."""

    ok: bool
    reasons: dict[str, str]
    details: dict[str, object]


class Pulse:
    """When something last turned, answered or succeeded. Thread-safe."""

    __slots__ = ("_at", "_clock")

    def __init__(self, *, started: bool = True, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._at: float | None = clock() if started else None

    def beat(self) -> None:
        """Note that it happened now."""
        self._at = self._clock()

    @property
    def age_seconds(self) -> float | None:
        """Return the seconds since the last beat, None when there was none."""
        at = self._at
        return None if at is None else self._clock() - at

    def within(self, seconds: float, what: str) -> Check:
        """Return a check that the last beat is no older than `seconds`."""

        def check() -> str | None:
            age = self.age_seconds
            if age is None:
                return f"{what}: not yet"
            return None if age <= seconds else f"{what}: {age:.0f} s ago"

        return check


class Health:
    """The checks of one process. A check that raises has failed."""

    def __init__(self) -> None:
        self._live: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}
        self._details: dict[str, Callable[[], object]] = {}
        self._lock = threading.Lock()
        self._is_booted = False
        self._is_draining = False
        self._boot_step = "starting"

    def add_live(self, name: str, check: Check) -> None:
        """Ask `check` for liveness; it must look at nothing outside this process."""
        with self._lock:
            self._live[name] = check

    def add_ready(self, name: str, check: Check) -> None:
        """Ask `check` for readiness; it must not wait."""
        with self._lock:
            self._ready[name] = check

    def add_detail(self, name: str, value: Callable[[], object]) -> None:
        """Show a value beside the answers; it decides nothing."""
        with self._lock:
            self._details[name] = value

    def boot_step(self, step: str) -> None:
        """Say what the boot is waiting for."""
        self._boot_step = step

    def booted(self) -> None:
        """Say that the process can work from now on."""
        self._is_booted = True

    def drain(self) -> None:
        """Say that the process takes no new work any more."""
        self._is_draining = True

    @property
    def is_draining(self) -> bool:
        """Tell whether the process is going away."""
        return self._is_draining

    def live(self) -> Report:
        """Answer whether the process should be left running."""
        with self._lock:
            checks = dict(self._live)
        return self._report(_failed(checks))

    def ready(self) -> Report:
        """Answer whether the process may be given work."""
        if self._is_draining:
            return self._report({"process": "draining"})
        if not self._is_booted:
            return self._report({"process": f"booting: {self._boot_step}"})
        with self._lock:
            checks = dict(self._ready)
        return self._report(_failed(checks))

    def _report(self, reasons: dict[str, str]) -> Report:
        with self._lock:
            details = dict(self._details)
        return Report(
            ok=not reasons,
            reasons=reasons,
            details={name: _value(read) for name, read in details.items()},
        )


def _failed(checks: dict[str, Check]) -> dict[str, str]:
    reasons = {}
    for name, check in checks.items():
        try:
            reason = check()
        except Exception as error:
            _log.exception("health_check_failed", check=name)
            reason = f"the check itself failed: {type(error).__name__}"
        if reason is not None:
            reasons[name] = reason
    return reasons


def _value(read: Callable[[], object]) -> object:
    try:
        return read()
    except Exception as error:
        return f"unreadable: {type(error).__name__}"
