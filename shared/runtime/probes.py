"""Threads that ask the servers every few seconds, so that readiness only has to look at a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable

import redis
import sqlalchemy as sa
import structlog

from shared.runtime.health import Pulse

#: Seconds between two questions.
EVERY_SECONDS = 2.0

_log = structlog.get_logger("health")


class Probe:
    """Asks one server again and again; `pulse` beats at every answer.

    Only changes are logged: the first failure, and the first answer after it.
    """

    def __init__(
        self, name: str, ask: Callable[[], object], *, every_seconds: float = EVERY_SECONDS
    ) -> None:
        self.name = name
        self.pulse = Pulse(started=False)
        self._ask = ask
        self._every_seconds = every_seconds
        self._stop = threading.Event()
        self._is_answering = True
        self._thread = threading.Thread(target=self._run, name=f"probe-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; it may still be waiting for an answer."""
        self._stop.set()

    def run_once(self) -> bool:
        """Ask once."""
        try:
            self._ask()
        except Exception as error:
            if self._is_answering:
                self._is_answering = False
                _log.warning("server_not_answering", server=self.name, error=str(error))
            return False
        self.pulse.beat()
        if not self._is_answering:
            self._is_answering = True
            _log.info("server_answers_again", server=self.name)
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            self.run_once()
            self._stop.wait(self._every_seconds)


def database_question(engine: sa.Engine) -> Callable[[], object]:
    """Return a question that any database answers; it takes no lock."""
    reader = engine.execution_options(read_only=True)

    def ask() -> object:
        with reader.connect() as connection:
            return connection.execute(sa.text("SELECT 1")).scalar()

    return ask


def redis_question(url: str, *, timeout_seconds: float) -> Callable[[], object]:
    """Return a question to Redis on a connection of its own, which repeats nothing by itself."""
    client = redis.Redis.from_url(
        url, socket_timeout=timeout_seconds, socket_connect_timeout=timeout_seconds
    )
    return client.ping
