"""One blocked Redis connection per process that hears all its bells.

Its own bell always (cancels of what it runs); the bells of its queues only while something may be
fetched, since a bell popped without room would be a wake-up lost. A second bell of its own tells
the blocked connection that this has changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import redis
import structlog

from shared.core.clock import monotonic
from shared.outbox.once import Outage
from shared.outbox.scripts import Scripts

#: Seconds that one BLPOP waits; the client's socket time-out is this and a margin.
BLOCK_SECONDS = 2
SOCKET_MARGIN_SECONDS = 3.0
#: Seconds between tries while Redis is away.
_AWAY_SECONDS = 0.25

_log = structlog.get_logger("outbox.waker")


class Waker:
    """Owns the thread; hands out one event per queue."""

    def __init__(
        self,
        *,
        client: redis.Redis,
        scripts: Scripts,
        node: str,
        can_fetch: Callable[[], bool],
        on_own_bell: Callable[[], None],
    ) -> None:
        self._client = client
        self._scripts = scripts
        self._own_key = scripts.node_bell_key(node).encode()
        self._listen_key = f"{scripts.node_bell_key(node)}:listen".encode()
        self._can_fetch = can_fetch
        self._on_own_bell = on_own_bell
        self._events: dict[str, threading.Event] = {}
        self._is_running = False
        self._listens_to_queues = True
        self._is_wanted = False
        self._thread: threading.Thread | None = None
        self.last_turn = monotonic()
        self._outage = Outage(_log, "waker_redis")

    def event(self, queue_name: str) -> threading.Event:
        """Return the event that is set when this queue's bell was heard."""
        return self._events.setdefault(queue_name, threading.Event())

    def start(self) -> None:
        """Start the thread."""
        self._is_running = True
        self._thread = threading.Thread(target=self._run, name="outbox-waker", daemon=True)
        self._thread.start()

    def want(self) -> None:
        """A consumer has found nothing: hear its bell as soon as something may be fetched."""
        self._is_wanted = True
        if self._can_fetch():
            self.freed()

    def freed(self) -> None:
        """A thread has become idle; costs nothing unless a consumer waits for a bell unheard."""
        if not self._is_wanted:
            return
        self._is_wanted = False
        if not self._listens_to_queues:
            try:
                self._scripts.ring(self._listen_key.decode())
            except redis.RedisError as error:
                # The consumers look once a second anyway.
                self._outage.away(error=str(error))

    def stop(self) -> None:
        """End the thread within one BLPOP, and wake every waiting consumer now."""
        self._is_running = False
        for event in list(self._events.values()):
            event.set()

    def join(self, seconds: float) -> bool:
        """Wait for the thread's end."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        turn = 0
        while self._is_running:
            self.last_turn = monotonic()
            turn += 1
            try:
                self._turn(turn)
            except redis.RedisError as error:
                self._outage.away(error=str(error))
                threading.Event().wait(_AWAY_SECONDS)
            except Exception:
                _log.exception("waker_turn_failed")
                threading.Event().wait(_AWAY_SECONDS)

    def _turn(self, turn: int) -> None:
        keys = {self._scripts.bell_key(name).encode(): name for name in sorted(self._events)}
        # BLPOP prefers the first key that has something: rotate, so that all are first in turn.
        order = list(keys)
        order = order[turn % len(order) :] + order[: turn % len(order)] if order else []
        self._listens_to_queues = self._can_fetch()
        heard = [self._own_key, self._listen_key, *(order if self._listens_to_queues else [])]
        answer = self._client.blpop(heard, timeout=BLOCK_SECONDS)
        self._outage.back()
        if answer is None:
            return
        key = answer[0]
        if key == self._own_key:
            self._on_own_bell()
        elif key in keys and self._can_fetch():
            self._events[keys[key]].set()
        elif key in keys:
            # The room is gone meanwhile: another process may have some.
            self._scripts.rering(keys[key])

    def is_alive(self) -> bool:
        """Tell whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()
