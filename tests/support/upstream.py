"""An HTTP server on loopback that answers with exactly the bytes a test says, also wrong ones."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

#: Seconds after which a forgotten connection ends by itself.
_SOCKET_SECONDS = 20.0
#: How a client begins that wants TLS.
_TLS_HELLO = b"\x16"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that came: small-letter header names."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


#: Writes an answer to the socket, which is closed after it.
Script = Callable[[socket.socket, Asked], None]


def answer(
    body: bytes = b"", *, status: str = "200 OK", announced: int | None = None, **headers: str
) -> Script:
    """Answer with a body and a length, which may be another; `content_type` names a header."""
    length = len(body) if announced is None else announced
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    raw = "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def script(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(raw)

    return script


def redirect(location: str, status: str = "302 Found") -> Script:
    """Send elsewhere."""
    return answer(status=status, Location=location)


def ranged(
    body: bytes,
    *,
    etag: str = '"v1"',
    shift: int = 0,
    total: int = 0,
    status: str = "206 Partial Content",
) -> Script:
    """Serve ranges to the end, perhaps not quite as they should be; all of it without one."""

    def script(connection: socket.socket, asked: Asked) -> None:
        asked_range = asked.headers.get("range")
        if asked_range is None or status.startswith("200"):
            answer(body, ETag=etag)(connection, asked)
            return
        start = int(asked_range.removeprefix("bytes=").removesuffix("-")) + shift
        span = f"bytes {start}-{len(body) - 1}/{len(body) + total}"
        answer(body[start:], status=status, ETag=etag, Content_Range=span)(connection, asked)

    return script


class Upstream:
    """The server. `routes` are scripts by path; whatever has none is a 404."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.routes: dict[str, Script] = {}
        self.asked: list[Asked] = []
        self._tls = tls
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The base of its URLs, without a slash at the end."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def count(self, path: str) -> int:
        """Return how often a path was asked for."""
        return sum(one.path == path for one in self.asked)

    def stopped(self, seconds: float) -> bool:
        """Wait; true at once when the server is being stopped."""
        return self._stopped.wait(seconds)

    def close(self) -> None:
        """Stop listening; scripts that wait with `stopped` end."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(_SOCKET_SECONDS)
        with contextlib.suppress(OSError):
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            asked = _read(connection)
            if asked is not None:
                self.asked.append(asked)
                script = self.routes.get(asked.path, answer(b"no", status="404 Not Found"))
                script(connection, asked)
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
        connection.close()


def _read(connection: socket.socket) -> Asked | None:
    data = b""
    while b"\r\n\r\n" not in data and not data.startswith(_TLS_HELLO):
        more = connection.recv(65536)
        if not more:
            return None
        data += more
    if data.startswith(_TLS_HELLO):
        return None
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    while len(body) < int(headers.get("content-length", "0")):
        body += connection.recv(65536)
    return Asked(method, path, headers, body)
