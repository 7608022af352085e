"""Routes whose body is JSON: read within bounds on size and silence before anything sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import Message

from services.api.bodies import BodyTimeout, Sink, stream_body
from services.api.deps import get_api
from shared.core.errors import InvalidError, TooLargeError

_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE"})


class JsonRoute(APIRoute):
    """The route class of every area but the objects themselves."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with the body read before it."""
        handle = super().get_route_handler()

        async def read_and_handle(request: Request) -> Response:
            if request.method in _WITHOUT_BODY:
                return await handle(request)
            settings = get_api(request).deps.settings
            body = _Buffer(settings.max_json_bytes)
            body.expect(request.headers.get("content-length", ""))
            seconds = settings.body_idle_seconds
            try:
                # All of it within what a large body may be silent: it is kept in memory, and
                # nobody knows yet who sends it.
                async with asyncio.timeout(seconds):
                    await stream_body(request, body, idle_seconds=seconds)
            except TimeoutError:
                raise BodyTimeout(f"the body did not come within {seconds} seconds") from None
            body.check_type(request.headers.get("content-type"))
            return await handle(Request(request.scope, body.replay))

        return read_and_handle


class _Buffer(Sink):
    """A small body, whole."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._body = bytearray()

    def expect(self, content_length: str) -> None:
        if content_length.isdigit() and int(content_length) > self._limit:
            raise self._too_large()

    def write(self, chunk: bytes) -> None:
        if len(self._body) + len(chunk) > self._limit:
            raise self._too_large()
        self._body += chunk

    def check_type(self, content_type: str | None) -> None:
        """Raise InvalidError for what says that it is no JSON; curl says so of its own accord."""
        if not self._body or content_type is None:
            return
        kind = content_type.partition(";")[0].strip().lower()
        if kind != "application/json" and not (
            kind.startswith("application/") and kind.endswith("+json")
        ):
            raise InvalidError(
                "the body is to be JSON: send it with Content-Type: application/json",
                code="content_type_invalid",
            )

    async def replay(self) -> Message:
        return {"type": "http.request", "body": bytes(self._body), "more_body": False}

    def _too_large(self) -> TooLargeError:
        return TooLargeError(
            f"a JSON body has at most {self._limit} bytes", max_json_bytes=self._limit
        )
