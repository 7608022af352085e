"""/livez, /readyz and /metrics on their own port, from threads that no event loop holds up."""

from __future__ import annotations

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from shared.core.errors import InvalidError
from shared.runtime.health import Health, Report

#: Seconds that a client may take to send its request.
REQUEST_SECONDS = 5.0


class HealthServer:
    """Serves the answers of `health` and the metrics of `registry`."""

    def __init__(
        self, health: Health, registry: CollectorRegistry, *, host: str, port: int
    ) -> None:
        try:
            self._server = _Server((host, port), _handler(health, registry))
        except OSError as error:
            raise InvalidError(
                f"the health port {host}:{port} cannot be opened: {error}", host=host, port=port
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.5},
            name="health",
            daemon=True,
        )

    @property
    def port(self) -> int:
        """The port that is really open."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A connection that is cut is the prober's business, not a traceback in our log.
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Drop a request that broke off."""


def _handler(health: Health, registry: CollectorRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS
        server_version = "blox"
        sys_version = ""

        def do_GET(self) -> None:
            """Answer one of the three paths."""
            path = urlsplit(self.path).path
            if path == "/livez":
                self._answer_report(health.live())
            elif path == "/readyz":
                self._answer_report(health.ready())
            elif path == "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, content_type, encode(registry))
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"not here\n")

        def do_HEAD(self) -> None:
            """Answer like GET, without the body."""
            self.do_GET()

        def _answer_report(self, report: Report) -> None:
            status = HTTPStatus.OK if report.ok else HTTPStatus.SERVICE_UNAVAILABLE
            body = {"ok": report.ok, "reasons": report.reasons, **report.details}
            text = json.dumps(body, default=str) + "\n"
            self._answer(status, "application/json", text.encode())

        def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep probes out of the log."""

    return Handler
