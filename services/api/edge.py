"""The outermost layer: request ids, limits on the head, surprises, and refused bodies.

Whatever an answer is, it leaves here with an id, and a connection whose request body was not read
is closed in a way that still lets the client see the answer.
"""

from __future__ import annotations

import asyncio
import re
import time

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.api import problems
from shared.core.ids import new_id

log = structlog.get_logger()

#: Headers of one request; S3 clients send about twenty, and each x-blox-meta-* is one.
MAX_HEADERS = 100
#: Bytes of path and query: a key of 1,024 bytes, a prefix and a cursor, all percent-encoded.
MAX_TARGET_BYTES = 16 * 1024
#: After an answer that left the request's body unread, the rest is dropped for this long ...
LINGER_SECONDS = 2.0
#: ... and up to this many bytes. A socket closed at once would take the answer with it.
LINGER_BYTES = 16 * 1024 * 1024

_REQUEST_ID = re.compile(rb"[0-9A-Za-z._-]{8,64}\Z")


class Aborted(Exception):
    """The answer cannot be finished; the connection closes so that the client sees it is short."""


class Edge:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, max_header_bytes: int) -> None:
        self._app = app
        self._max_header_bytes = max_header_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        scope["blox.request_id"] = exchange.request_id
        with structlog.contextvars.bound_contextvars(request_id=exchange.request_id):
            await self._handle(scope, exchange)

    async def _handle(self, scope: Scope, exchange: _Exchange) -> None:
        started = time.perf_counter()
        outcome = "cut_off"
        try:
            refusal = self._judge_head(scope, exchange.request_id)
            await (refusal or self._app)(scope, exchange.receive, exchange.send)
            outcome = "answered"
        except ClientDisconnect:
            outcome = "client_gone"
        except Aborted:
            outcome = "aborted"
        except asyncio.CancelledError:
            # The process ends, and with it the time that requests had to end by themselves.
            if exchange.status:
                raise
            await problems.stopping(exchange.request_id)(scope, exchange.receive, exchange.send)
        except Exception:
            outcome = "failed"
            log.exception("request_failed", method=scope["method"], path=scope["path"][:200])
            if exchange.status:
                raise
            await problems.internal(exchange.request_id)(scope, exchange.receive, exchange.send)
        finally:
            route = scope.get("route")
            log.info(
                "request",
                method=scope["method"],
                route=getattr(route, "path", None) or scope["path"][:200],
                status=exchange.status,
                outcome=outcome,
                seconds=round(time.perf_counter() - started, 4),
                body_bytes=exchange.bytes_received,
            )

    def _judge_head(self, scope: Scope, request_id: str) -> problems.Problem | None:
        target = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        if target > MAX_TARGET_BYTES:
            detail = f"path and query have at most {MAX_TARGET_BYTES} bytes"
            return problems.Problem(414, "uri_too_long", detail, request_id=request_id)
        headers = scope["headers"]
        if len(headers) > MAX_HEADERS:
            detail = f"a request has at most {MAX_HEADERS} headers"
            return problems.Problem(431, "headers_too_large", detail, request_id=request_id)
        if sum(len(name) + len(value) for name, value in headers) > self._max_header_bytes:
            detail = f"the headers have at most {self._max_header_bytes} bytes"
            return problems.Problem(431, "headers_too_large", detail, request_id=request_id)
        codings = [value for name, value in headers if name == b"transfer-encoding"]
        if any(coding.strip().lower() != b"chunked" for coding in codings):
            detail = "the only transfer coding that is understood is chunked"
            return problems.Problem(501, "not_implemented", detail, request_id=request_id)
        return None


class _Exchange:
    """One request and its answer on their way through."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.status = 0
        self.bytes_received = 0
        self._lingers = False
        self.request_id, self._has_body, self._expects = _read_head(scope)

    async def receive(self) -> Message:
        message = await self._receive()
        self._expects = False
        if message["type"] == "http.request":
            self.bytes_received += len(message.get("body", b""))
            self._has_body = message.get("more_body", False)
        else:
            self._has_body = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self.request_id.encode())]
            if self._has_body:
                headers.append((b"connection", b"close"))
                # A client that waits for 100 Continue sends nothing that we would have to drop.
                self._lingers = not self._expects
            message = {**message, "headers": headers}
        elif self._lingers and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._drop_rest()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _drop_rest(self) -> None:
        until = self.bytes_received + LINGER_BYTES
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while self._has_body and self.bytes_received < until:
                    await self.receive()
        except TimeoutError:
            pass


def _read_head(scope: Scope) -> tuple[str, bool, bool]:
    """Return the request's id (the client's if sound), and whether a body follows or waits."""
    request_id, has_body, expects = "", False, False
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.match(value):
            request_id = value.decode("ascii")
        elif name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 ")):
            has_body = True
        elif name == b"expect":
            expects = True
    return request_id or new_id(), has_body, expects
