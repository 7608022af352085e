"""The event loop's thread: it serves HTTP until it is asked to stop, and shows that it still turns.

The main thread keeps the signals and the ordered shutdown, as in every other service.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

import structlog
import uvicorn
import uvloop

from shared.core.clock import Deadline
from shared.core.errors import InvalidError
from shared.runtime.health import Pulse

#: Seconds between two signs of life of the event loop.
BEAT_SECONDS = 1.0
#: Connections that the kernel holds while the loop is busy.
BACKLOG = 2048

_log = structlog.get_logger("api.serving")


class HttpThread:
    """Runs one uvicorn server. `on_end` is called when it ends without having been asked to."""

    def __init__(
        self, server: uvicorn.Server, listener: socket.socket, *, on_end: Callable[[str], None]
    ) -> None:
        self._server = server
        self._listener = listener
        self._on_end = on_end
        self._is_asked = False
        self.turned = Pulse()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Take no new requests, let those that run end, then cut them off.

        Raises RuntimeError when the loop is still there after `seconds`.
        """
        self._is_asked = True
        deadline = Deadline(seconds)
        self._server.should_exit = True
        self._thread.join(seconds * 0.9)
        if self._thread.is_alive():
            _log.warning("requests_cut_off")
            self._server.force_exit = True
            self._thread.join(max(0.1, deadline.remaining(seconds)))
        if self._thread.is_alive():
            raise RuntimeError("the event loop does not end")

    def _run(self) -> None:
        reason = "the HTTP server ended"
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            # Also SystemExit, by which uvicorn gives up.
            _log.exception("http_server_failed")
            reason = f"the HTTP server failed: {error!r}"
        if not self._is_asked:
            self._on_end(reason)

    async def _serve(self) -> None:
        beating = asyncio.create_task(self._beat())
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating

    async def _beat(self) -> None:
        while True:
            self.turned.beat()
            await asyncio.sleep(BEAT_SECONDS)


def listen(host: str, port: int) -> socket.socket:
    """Open the port before anything else is started; InvalidError when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise InvalidError(
            f"the port {host}:{port} cannot be opened: {error}", host=host, port=port
        ) from error
