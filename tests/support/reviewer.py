"""A reviewer elsewhere: an HTTP server on loopback that checks signatures and answers as told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from shared.core.webhooks import make_secret, sign, verify

Script = Callable[["Asked"], tuple[int, Any]]


@dataclass(frozen=True)
class Asked:
    """One request that came, with a signature that fits."""

    method: str
    path: str
    message_id: str
    question: dict[str, Any] = field(default_factory=dict)


def later(_asked: Asked) -> tuple[int, Any]:
    """Answer that the answer comes later; asked again, that there is none yet."""
    return 202, {}


def says(outcome: str, reason: str = "") -> Script:
    """Return a script that answers at once."""
    return lambda _asked: (200, {"outcome": outcome, "reason": reason})


class Reviewer:
    """The server. `script` decides what a POST is answered, `status` what a GET is."""

    def __init__(self) -> None:
        self.secrets = [make_secret()]
        self.script: Script = later
        self.status: Script = later
        self.asked: list[Asked] = []
        self.forged = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is asked."""
        return f"http://127.0.0.1:{self._server.server_port}/ask"

    @property
    def status_url(self) -> str:
        """Where it tells how far it is."""
        return f"http://127.0.0.1:{self._server.server_port}/steps/{{step_id}}"

    def message(
        self,
        document: dict[str, Any],
        *,
        step_id: int,
        message_id: str = "msg-1",
        age_seconds: float = 0.0,
    ) -> tuple[dict[str, str], bytes]:
        """Return headers and body of a callback."""
        body = json.dumps({"step_id": step_id} | document).encode()
        stamp = int(time.time() - age_seconds)
        return sign(self.secrets, message_id=message_id, timestamp=stamp, body=body), body

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join(5)
        self._server.server_close()


@contextmanager
def running_reviewer() -> Iterator[Reviewer]:
    """Run one."""
    reviewer = Reviewer()
    try:
        yield reviewer
    finally:
        reviewer.close()


def _handler(reviewer: Reviewer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self._answer(lambda asked: reviewer.script(asked))

        def do_GET(self) -> None:
            self._answer(lambda asked: reviewer.status(asked))

        def _answer(self, script: Script) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                message_id = verify(reviewer.secrets, headers, body, now=time.time())
            except Exception:
                reviewer.forged += 1
                self._send(401, b"{}")
                return
            question = json.loads(body) if body else {}
            asked = Asked(self.command, self.path, message_id, question)
            reviewer.asked.append(asked)
            status, document = script(asked)
            text = document if isinstance(document, bytes) else json.dumps(document).encode()
            self._send(status, text)

        def _send(self, status: int, text: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_arguments: Any) -> None:
            pass

    return Handler
