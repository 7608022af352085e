"""The frame of every service process: settings, logs, metrics, health port, signals.

It is the first thing that a composition root makes, and the last that ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType

import structlog

from shared.core import failpoints
from shared.runtime.descriptors import raise_limit
from shared.runtime.health import Health
from shared.runtime.health_server import HealthServer
from shared.runtime.logging import configure_logging
from shared.runtime.memory import give_back_large_buffers
from shared.runtime.metrics import Metrics, product_version
from shared.runtime.problems import problems
from shared.runtime.settings import Settings, SettingsError
from shared.runtime.shutdown import StopRequest

_STANDARD_INPUT = 0

_log = structlog.get_logger("process")


class Process:
    """One service process. Only one per Python process: it owns logs and signals."""

    def __init__(self, service: str, settings: Settings) -> None:
        self.service = service
        self.settings = settings
        self.stop = StopRequest()
        self.health = Health()
        self.metrics = Metrics(service)
        self._health_server: HealthServer | None = None

    def boot(self, *, unknown: list[str]) -> None:
        """Judge the settings, open the health port and take the signals.

        `unknown` are variables that no setting has. Raises SettingsError when the process must not
        start; InvalidError when the health port is taken.
        """
        found = problems(self.settings, unknown=unknown)
        found.refuse()
        try:
            failpoints.arm(self.settings.failpoints)
        except ValueError as error:
            raise SettingsError(f"BLOX_FAILPOINTS: {error}.") from error
        configure_logging(self.settings.log, service=self.service)
        for warning in found.warnings:
            _log.warning("settings_warning", warning=warning)
        give_back_large_buffers()
        self._take_signals()
        self._health_server = HealthServer(
            self.health,
            self.metrics.registry,
            host=self.settings.health.host,
            port=self.settings.health.port,
        )
        self._health_server.start()
        _log.info(
            "process_started",
            version=product_version(),
            pid=os.getpid(),
            descriptors=raise_limit(),
            health_port=self._health_server.port,
        )

    def close(self) -> None:
        """Close the health port; the very last step."""
        if self._health_server is not None:
            self._health_server.close()

    def _take_signals(self) -> None:
        def on_signal(number: int, _frame: FrameType | None) -> None:
            self.stop.request(signal.Signals(number).name)

        signal.signal(signal.SIGTERM, on_signal)
        signal.signal(signal.SIGINT, on_signal)
        if self.settings.stop_with_parent:
            threading.Thread(target=self._watch_parent, name="parent", daemon=True).start()

    def _watch_parent(self) -> None:
        # Nothing is ever written there: the read ends when the other end is closed.
        with contextlib.suppress(OSError):
            while os.read(_STANDARD_INPUT, 64):
                pass
        self.stop.request("the parent process is gone")
