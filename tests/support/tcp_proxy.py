"""A TCP proxy that cuts a connection when a chosen word passes: before it, or after its answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Literal

Cut = Literal["before", "after"]


class Proxy:
    """Forwards to a port on this machine. `arm` makes it cut the next client that says `word`."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._armed: tuple[bytes, Cut] | None = None
        #: Set once a connection has been cut.
        self.has_cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, word: bytes, cut: Cut) -> None:
        """Cut once: `before` the server hears the word, or `after` it has answered it."""
        self.has_cut.clear()
        with self._lock:
            self._armed = (word, cut)

    def close(self) -> None:
        """Accept nothing more."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target_port))
            is_cut = threading.Event()
            for source, sink, is_client in ((client, server, True), (server, client, False)):
                threading.Thread(
                    target=self._pump, args=(source, sink, is_client, is_cut), daemon=True
                ).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, is_client: bool, is_cut: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_client and (cut := self._hit(data)) is not None:
                    if cut == "before":
                        break
                    is_cut.set()
                elif not is_client and is_cut.is_set():
                    # The server has done it, and nobody hears of it.
                    break
                sink.sendall(data)
        if is_cut.is_set():
            self.has_cut.set()
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _hit(self, data: bytes) -> Cut | None:
        with self._lock:
            if self._armed is None or self._armed[0] not in data:
                return None
            cut = self._armed[1]
            self._armed = None
            if cut == "before":
                self.has_cut.set()
            return cut


@contextlib.contextmanager
def proxy_to(target_port: int) -> Iterator[Proxy]:
    """Run a proxy for the length of the block."""
    proxy = Proxy(target_port)
    try:
        yield proxy
    finally:
        proxy.close()
