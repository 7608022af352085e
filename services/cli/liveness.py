"""Does what an orchestrator does with /livez: a process that says it is not alive is ended.

Only an answer counts. A process that does not answer may be paused or starved; its leases run out
by themselves.
"""

from __future__ import annotations

import http.client
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from services.cli.output import Output
from services.cli.processes import ProcessTable

EVERY_SECONDS = 5.0
#: Answers in a row before the process is ended.
MISSES = 3


class LivenessWatch:
    """One thread that asks all processes in turn."""

    def __init__(
        self,
        table: ProcessTable,
        health_url: Callable[[str], str],
        names: Sequence[str],
        output: Output,
        *,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        self._table = table
        self._health_url = health_url
        self._names = list(names)
        self._output = output
        self._every_seconds = every_seconds
        self._misses: Counter[str] = Counter()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join(5.0)

    def run_once(self) -> None:
        """Ask every process once, and end those that have said so often enough."""
        for name in self._names:
            reason = not_live_reason(self._health_url(name))
            self._misses[name] = self._misses[name] + 1 if reason is not None else 0
            if self._misses[name] >= MISSES:
                self._misses[name] = 0
                self._output.note(name, f"not live, ended: {reason}")
                self._table[name].signal(signal.SIGKILL)

    def _run(self) -> None:
        while not self._closing.wait(self._every_seconds):
            self.run_once()


def not_live_reason(health_url: str) -> str | None:
    """Return what a process says against its own liveness; None when it is live or silent."""
    address = urlsplit(health_url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=2.0)
    try:
        connection.request("GET", "/livez")
        answer = connection.getresponse()
        body = answer.read(4096).decode(errors="replace").strip()
        return body if answer.status == http.HTTPStatus.SERVICE_UNAVAILABLE else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
