"""A request's body into staging: one loop, small chunks, constant memory."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Protocol

from starlette.requests import ClientDisconnect, Request

from shared.core.errors import RequestError

#: Bytes hashed and written in one go; the loop serves others in between.
CHUNK_BYTES = 1024 * 1024


class BodyTimeout(RequestError):
    """The body stopped coming."""

    code = "request_timeout"


class Sink(Protocol):
    """Where the bytes go, such as a staging writer."""

    def write(self, chunk: bytes) -> None:
        """Take the next bytes; raises when there are too many or no room."""
        ...

    def waits_for(self, count: int) -> Future[None] | None:
        """Return what must end before a `write` of so many bytes; None when it can be at once."""
        return None


async def stream_body(request: Request, sink: Sink, *, idle_seconds: float) -> None:
    """Feed the whole body to `sink` as it arrives.

    Raises ClientDisconnect when the client goes away before the end, and BodyTimeout when nothing
    comes for `idle_seconds`; the sink is left to the caller in every case.
    """
    receive, loop = request.receive, asyncio.get_running_loop()
    try:
        async with asyncio.timeout(idle_seconds) as idle:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                body = message.get("body", b"")
                # While staging is slow no client is blamed for it.
                idle.reschedule(None)
                if len(body) <= CHUNK_BYTES:
                    if body:
                        await _room(sink, len(body))
                        sink.write(body)
                else:
                    await _write_pieces(sink, memoryview(body))
                if not message.get("more_body", False):
                    return
                idle.reschedule(loop.time() + idle_seconds)
    except TimeoutError:
        raise BodyTimeout(f"no byte of the body came for {idle_seconds} seconds") from None


async def _write_pieces(sink: Sink, body: memoryview) -> None:
    for start in range(0, len(body), CHUNK_BYTES):
        await _room(sink, min(CHUNK_BYTES, len(body) - start))
        sink.write(bytes(body[start : start + CHUNK_BYTES]))
        await asyncio.sleep(0)


async def _room(sink: Sink, count: int) -> None:
    """Wait until the sink can take more; what went wrong meanwhile is told by the next write."""
    while (future := sink.waits_for(count)) is not None:
        step = asyncio.wrap_future(future)
        # Looked at here, so that no loop complains of an error that nobody has seen.
        step.add_done_callback(lambda done: done.cancelled() or done.exception())
        # A client that goes away does not take back a part that is being sent: this cancels
        # nothing.
        await asyncio.wait([step])
