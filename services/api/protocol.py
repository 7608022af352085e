"""uvicorn's HTTP protocol with bounds on what frames a request, in bytes and in time.

httptools collects a header of any length before it shows it, takes trailers for headers, drops the
body of a request that offers to speak another protocol, and a connection may stay silent for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from services.api.problems import Problem

#: Seconds that a client has for the head of a request, once connected or once it has begun.
HEAD_SECONDS = 20.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. `bounded_protocol` makes the class with the numbers of a deployment."""

    max_head_bytes: ClassVar[int] = 96 * 1024
    head_seconds: ClassVar[float] = HEAD_SECONDS

    #: Bytes since the last one that was part of a body: a head, chunk sizes, trailers.
    _framing_bytes = 0
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
        """Parse, and count what is no body."""
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        self._framing_bytes += len(data)
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError:
            self._refuse(400, "bad_request", "Invalid HTTP request received.")
        if self._framing_bytes > self.max_head_bytes:
            detail = f"head and trailers of a request have at most {self.max_head_bytes} bytes"
            self._refuse(431, "headers_too_large", detail)

    def _parse(self, rest: memoryview) -> None:
        while rest:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
                self._decline_upgrade()

    def _decline_upgrade(self) -> None:
        """Read the head again without its offer, so that its body and what follows are read."""
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a head."""
        super().on_message_begin()
        if self._head_timer is None:
            self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; a trailer must not become one of a request that was judged already."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Let the request pass on."""
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("nothing is tunnelled")
        if self.parser.should_upgrade():
            return
        self._in_head = False
        self._framing_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect the next head."""
        if self._in_head:
            return  # Of an offer to upgrade: the head is read once more.
        super().on_message_complete()
        self._in_head, self._framing_bytes = True, 0

    def _refuse(self, status: int, code: str, detail: str) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        if self._is_answer_due():
            # A request that came whole: its answer first, and nothing after it.
            self.cycle.keep_alive = False
            self.flow.resume_reading()
            return
        if self._may_answer():
            answer = Problem(status, code, detail)
            lines = [STATUS_LINE[status], b"connection: close\r\n"]
            lines += [name + b": " + value + b"\r\n" for name, value in answer.raw_headers]
            self.transport.write(b"".join([*lines, b"\r\n", bytes(answer.body)]))
        self.transport.close()

    def _is_answer_due(self) -> bool:
        """Tell whether a request that is being served has nothing to do with what is refused."""
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete or not self._in_head:
            return False
        # What follows a body that nobody has seen the end of yet belongs to it: it is too long.
        return cycle.response_started or not cycle.body or bool(self.pipeline)

    def _may_answer(self) -> bool:
        """Tell whether the next bytes may be an answer to what is refused."""
        # uvicorn has no cycle before the first request, whatever its annotation says.
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        if self.pipeline or cycle.response_started:
            return False  # Another answer is due first, or on its way.
        # The body of the request that is being served is broken, or goes on: this is its answer.
        cycle.disconnected = True
        cycle.message_event.set()
        return True

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
