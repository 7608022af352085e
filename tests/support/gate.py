"""A door before a server on this machine: shut, it cuts what goes through and lets nobody in."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Gate:
    """Forwards to a port while it is open, as it is at first."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._is_open = True
        self._word: bytes | None = None
        self._ends: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        """Cut every connection, and refuse new ones from here on."""
        with self._lock:
            self._is_open, self._word = False, None
            ends = list(self._ends)
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        """Let everybody in again."""
        with self._lock:
            self._is_open = True

    def shut_at(self, word: bytes) -> None:
        """Shut when the next client says `word`, before the server hears it."""
        with self._lock:
            self._word = word

    def close(self) -> None:
        """End it for good."""
        self.shut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if not self._is_open:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target_port))
                self._ends |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._word is not None and self._word in data:
                    self.shut()
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            is_last = source not in self._ends
            self._ends -= {source, sink}
        if is_last:
            source.close()
            sink.close()


@contextlib.contextmanager
def gate_to(target_port: int) -> Iterator[Gate]:
    """Run a gate for the length of the block."""
    gate = Gate(target_port)
    try:
        yield gate
    finally:
        gate.close()
