"""uvicorn's HTTP protocol with a bound on the head of a request, in bytes and in time.

httptools collects a header of any length before it shows it, and a connection may stay silent for
ever; a client must not fill the memory or the connections of this process that way.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from services.api.problems import Problem

#: Seconds that a client has for the head of a request, once connected or once it has begun.
HEAD_SECONDS = 20.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. `bounded_protocol` makes the class with the numbers of a deployment."""

    max_head_bytes: ClassVar[int] = 96 * 1024
    head_seconds: ClassVar[float] = HEAD_SECONDS

    _head_bytes = 0
    _in_head = True
    _is_refused = False
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head that has not ended."""
        if self._is_refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self.max_head_bytes:
            detail = f"the head of a request has at most {self.max_head_bytes} bytes"
            self._refuse(431, "headers_too_large", detail)

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a head."""
        super().on_message_begin()
        if self._head_timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        """Let the request pass on."""
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the next head."""
        super().on_message_complete()
        self._in_head, self._head_bytes = True, 0

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._refuse(400, "bad_request", msg)

    def _refuse(self, status: int, code: str, detail: str) -> None:
        self._is_refused = True
        # An answer that is being sent must not get another one in its middle.
        # uvicorn has no cycle before the first request, whatever its annotation says.
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            answer = Problem(status, code, detail)
            lines = [STATUS_LINE[status], b"connection: close\r\n"]
            lines += [name + b": " + value + b"\r\n" for name, value in answer.raw_headers]
            self.transport.write(b"".join([*lines, b"\r\n", bytes(answer.body)]))
        self.transport.close()

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self._is_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            detail = f"no complete head within {self.head_seconds} seconds"
            self._refuse(408, "request_timeout", detail)


def bounded_protocol(
    *, max_head_bytes: int, head_seconds: float = HEAD_SECONDS
) -> type[asyncio.Protocol]:
    """Return the protocol class to give to uvicorn as `http=`."""
    numbers = {"max_head_bytes": max_head_bytes, "head_seconds": head_seconds}
    return type("BoundedHttpProtocol", (BoundedHttpProtocol,), numbers)
