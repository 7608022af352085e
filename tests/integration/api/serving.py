"""An ASGI application behind a real uvicorn on loopback, in a thread; and raw requests."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from starlette.types import ASGIApp

from services.api.server import build_server
from tests.support.eventually import eventually


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@contextlib.contextmanager
def serving(
    app: ASGIApp, *, max_header_bytes: int = 64 * 1024, head_seconds: float = 20.0
) -> Iterator[Address]:
    """Serve `app` until the block ends."""
    server = build_server(
        app,
        host="127.0.0.1",
        port=0,
        max_header_bytes=max_header_bytes,
        graceful_seconds=5,
        head_seconds=head_seconds,
    )
    thread = threading.Thread(target=server.run, name="test-server", daemon=True)
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive())
        assert server.started, "the server did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Address("127.0.0.1", port)
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive(), "the server did not stop"


@contextlib.contextmanager
def connection(address: Address) -> Iterator[socket.socket]:
    """Open a plain connection, for requests that no client library would send."""
    with socket.create_connection((address.host, address.port), timeout=20) as sock:
        yield sock


def read_answer(sock: socket.socket) -> bytes:
    """Read until the server closes."""
    chunks = []
    with contextlib.suppress(ConnectionResetError):
        while chunk := sock.recv(65536):
            chunks.append(chunk)
    return b"".join(chunks)


def status_of(answer: bytes) -> int:
    """Return the status code of a raw answer."""
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer.split(b" ", 2)[1])
