"""uvicorn's HTTP protocol with a bound on the head of a request, in bytes and in time.

httptools collects a header of any length before it shows it, and a connection may stay silent for
ever; a client must not fill the memory or the connections of this process that way.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from services.api.problems import Problem

#: Seconds that a client has for the head of a request, once connected or once it has begun.
HEAD_SECONDS = 20.0


def bounded_protocol(
    *, max_head_bytes: int, head_seconds: float = HEAD_SECONDS
) -> type[asyncio.Protocol]:
    """Return the protocol class to give to uvicorn as `http=`."""

    class BoundedHttpProtocol(HttpToolsProtocol):
        _head_bytes = 0
        _in_head = True
        _is_refused = False
        _head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._is_refused:
                return
            if self._in_head:
                self._head_bytes += len(data)
            super().data_received(data)
            if self._in_head and self._head_bytes > max_head_bytes:
                self._refuse(
                    431, "headers_too_large", f"more than {max_head_bytes} bytes of headers"
                )

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._head_timer is None:
                self._start_timer()

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._stop_timer()
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._in_head, self._head_bytes = True, 0

        def send_400_response(self, msg: str) -> None:
            self._refuse(400, "bad_request", msg)

        def _refuse(self, status: int, code: str, detail: str) -> None:
            self._is_refused = True
            # An answer that is being sent must not get another one in its middle.
            if self.cycle is None or self.cycle.response_complete:
                answer = Problem(status, code, detail)
                lines = [STATUS_LINE[status], b"connection: close\r\n"]
                lines += [name + b": " + value + b"\r\n" for name, value in answer.raw_headers]
                self.transport.write(b"".join([*lines, b"\r\n", bytes(answer.body)]))
            self.transport.close()

        def _start_timer(self) -> None:
            self._head_timer = self.loop.call_later(head_seconds, self._is_late)

        def _stop_timer(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _is_late(self) -> None:
            self._head_timer = None
            if not self.transport.is_closing():
                self._refuse(408, "request_timeout", f"no complete head within {head_seconds} s")

    return BoundedHttpProtocol
