"""Small regular duties of a process, on one thread: its row in `nodes`, its credits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from shared.core.clock import monotonic

_log = structlog.get_logger("outbox.pulse")


@dataclass(slots=True)
class _Duty:
    every_seconds: float
    act: Callable[[], None]
    next_at: float = field(default=0.0)


class Pulse:
    """Calls each duty every so often, and `at_end` once it is closed.

    A duty that fails is logged and called again next time.
    """

    def __init__(self, name: str, *, at_end: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._at_end = at_end
        self._duties: list[_Duty] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.last_turn = monotonic()

    def every(self, seconds: float, act: Callable[[], None]) -> None:
        """Add a duty; the first call comes at once. Add all before `start`."""
        self._duties.append(_Duty(seconds, act))

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """End the thread; False when a duty did not return within `seconds`."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.last_turn = now = monotonic()
            for duty in self._duties:
                if now >= duty.next_at and not self._stopping.is_set():
                    duty.next_at = now + duty.every_seconds
                    try:
                        duty.act()
                    except Exception as error:
                        _log.warning("duty_failed", thread=self._name, error=repr(error))
            wait = min((duty.next_at for duty in self._duties), default=now + 1) - monotonic()
            self._stopping.wait(max(0.01, wait))
        try:
            self._at_end()
        except Exception as error:
            _log.warning("duty_failed", thread=self._name, error=repr(error))
