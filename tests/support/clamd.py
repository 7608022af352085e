"""A clamd on loopback that speaks INSTREAM and finds what holds the word EICAR."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VIRUS = b"EICAR"


class Clamd:
    """The daemon. `says` stands in for its answer, `is_silent` lets it give none."""

    def __init__(self, listener: socket.socket, address: str) -> None:
        self.address = address
        self.says: bytes | None = None
        self.is_silent = False
        self.most_bytes = 1 << 30
        self.scanned: list[int] = []
        self._listener = listener
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._done.set()
        with socket.socket(self._listener.family, socket.SOCK_STREAM) as last:
            last.connect(self._listener.getsockname())
        self._thread.join(5)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            line, _ = self._listener.accept()
            if self._done.is_set():
                line.close()
                return
            threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with line, line.makefile("rb") as reader:
            assert reader.read(10) == b"zINSTREAM\0"
            content = bytearray()
            while True:
                (size,) = struct.unpack("!I", reader.read(4))
                if size == 0:
                    break
                content += reader.read(size)
                if len(content) > self.most_bytes:
                    line.sendall(b"INSTREAM size limit exceeded. ERROR\0")
                    return
            self.scanned.append(len(content))
            if self.is_silent:
                self._done.wait(20)
                return
            found = b"stream: Eicar-Test-Signature FOUND\0" if VIRUS in content else b"stream: OK\0"
            line.sendall(self.says if self.says is not None else found)


@contextmanager
def running_clamd(folder: Path | None = None) -> Iterator[Clamd]:
    """Run one on a free port, or on a socket in a folder."""
    if folder is None:
        listener = socket.create_server(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    else:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(folder / "c"))
        listener.listen()
        address = f"unix:{folder / 'c'}"
    clamd = Clamd(listener, address)
    try:
        yield clamd
    finally:
        clamd.close()
