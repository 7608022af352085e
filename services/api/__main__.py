"""The process of the HTTP API: composition root."""

from __future__ import annotations

import sys

import structlog

from services.api.app import create_app
from services.api.deps import ApiDeps
from services.api.server import build_server
from services.api.serving import HttpThread, listen
from shared.core.clock import Deadline
from shared.runtime.assembly import Parts
from shared.runtime.fetching import open_fetcher
from shared.runtime.optional_reviewers import optional_reviewers
from shared.runtime.process import Process
from shared.runtime.service import Running, run_service
from shared.runtime.settings import Settings
from shared.runtime.shutdown import Stage

#: Shares of the shutdown: requests in flight may take most of it.
_HTTP_SHARE = 0.6
#: Seconds that making the staging folder may take on a slow volume.
_PREPARE_SECONDS = 20.0

_log = structlog.get_logger("api")


def main() -> int:
    """Run until a signal; returns the exit code."""
    return run_service("api", _start, needs_redis=False, threads=_threads)


def _threads(settings: Settings) -> int:
    return settings.api.threads


def _start(process: Process, parts: Parts) -> Running:
    settings = process.settings
    parts.staging.prepare(deadline=Deadline(_PREPARE_SECONDS))
    listener = listen(settings.api.host, settings.api.port)
    parts.outbox.start_producer()
    app = create_app(
        ApiDeps(
            database=parts.outbox.context.db,
            outbox=parts.outbox,
            catalogue=parts.catalogue,
            staging=parts.staging,
            channels=parts.channels,
            secrets=parts.secrets,
            settings=settings.api,
            min_free_bytes=settings.staging.min_free_bytes,
            fetch=open_fetcher(settings),
            optional_reviewers=optional_reviewers(settings),
        )
    )
    server = build_server(
        app,
        host=settings.api.host,
        port=settings.api.port,
        max_header_bytes=settings.api.max_header_bytes,
        graceful_seconds=settings.shutdown_seconds * _HTTP_SHARE * 0.8,
    )
    http = HttpThread(server, listener, on_end=process.stop.request)
    process.health.add_live(
        "event_loop", http.turned.within(settings.health.loop_seconds, "last turn")
    )
    http.start()
    _log.info("http_listening", host=settings.api.host, port=listener.getsockname()[1])
    return Running(stages=(Stage("http", _HTTP_SHARE, http.stop),))


if __name__ == "__main__":
    sys.exit(main())
