"""The HTTP server of this service: uvicorn on uvloop and httptools, with bounded heads."""

from __future__ import annotations

import uvicorn
from starlette.types import ASGIApp

from services.api.protocol import HEAD_SECONDS, bounded_protocol

#: Seconds that an idle connection is kept for the next request; above a load balancer's usual 60.
KEEP_ALIVE_SECONDS = 75
#: What a head may have beyond its headers: the request line.
_REQUEST_LINE_BYTES = 32 * 1024


def build_server(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    max_header_bytes: int,
    graceful_seconds: float | None = None,
    head_seconds: float = HEAD_SECONDS,
) -> uvicorn.Server:
    """Return a server that is not started yet; `await server.serve()` runs it.

    A request's head must come within `head_seconds`; `graceful_seconds` bounds how long a stop
    waits for requests. It installs no log configuration.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http=bounded_protocol(
            max_head_bytes=max_header_bytes + _REQUEST_LINE_BYTES, head_seconds=head_seconds
        ),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=None
        if graceful_seconds is None
        else max(1, int(graceful_seconds)),
    )
    return uvicorn.Server(config)
