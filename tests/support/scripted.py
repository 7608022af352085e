"""An HTTP server on loopback that answers as a test tells it to, honestly or not."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass
class Request:
    """What came in, and the connection to answer on."""

    method: str
    path: str
    headers: dict[str, str]
    connection: socket.socket
    body: bytes = b""

    def answer(
        self,
        status: int,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        declared_length: int | None = None,
    ) -> None:
        """Send a whole answer; with another `declared_length` a lying one."""
        length = len(body) if declared_length is None else declared_length
        lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        head = "\r\n".join([*lines, "", ""]).encode()
        self.connection.sendall(head + (b"" if self.method == "HEAD" else body))

    def reset(self) -> None:
        """Break the connection off the hard way, as a host that lost its memory does."""
        no_linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
        os.close(self.connection.detach())


Script = Callable[[Request], None]


@dataclass
class Scripted:
    """The running server. `script` may be changed at any time; `released` ends what hangs."""

    endpoint: str
    script: Script
    #: Whether bodies are taken off the wire before the script runs.
    read_bodies: bool = True
    #: Whether who asks for leave to send a body is answered at once; it is waited for all the same.
    answers_before_bodies: bool = False
    requests: list[Request] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def hang(self, request: Request) -> None:
        """Never answer (a script)."""
        self.released.wait(60)


def always(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Script:
    """Answer every request in the same way."""
    return lambda request: request.answer(status, body, headers)


def error_body(code: str, message: str = "because") -> bytes:
    """Return the text in which S3 tells an error."""
    return f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


@contextlib.contextmanager
def scripted_server(script: Script) -> Iterator[Scripted]:
    """Run the server for the length of the block; each connection has its thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()[:2]
        server = Scripted(endpoint=f"http://{host}:{port}", script=script)
        closing = threading.Event()

        def accept() -> None:
            while not closing.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=_serve, args=(server, connection), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            closing.set()
            server.released.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def _serve(server: Scripted, connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        stream = connection.makefile("rb")
        while True:
            line = stream.readline().decode().split()
            if len(line) < 2:
                return
            headers = {}
            while text := stream.readline().decode().strip():
                name, _, value = text.partition(":")
                headers[name.lower()] = value.strip()
            request = Request(line[0], line[1], headers, connection)
            server.requests.append(request)
            if headers.get("expect") and server.answers_before_bodies:
                server.script(request)
                stream.read(int(headers["content-length"]))
                continue
            if headers.get("expect"):
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            if server.read_bodies:
                request.body = stream.read(int(headers.get("content-length", 0)))
            server.script(request)
            if connection.fileno() < 0:
                return
