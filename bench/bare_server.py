"""A bare asyncio server for comparison: SHA-256, MD5, file and fsync of a PUT, nothing else.

`python -m bench.bare_server FOLDER` on uvloop; it hashes and writes inline, as the API does,
follows with MD5 in a thread, and renames and syncs the file in a thread before it answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import queue
import sys
import threading
import uuid
from pathlib import Path

import uvloop


class Put(asyncio.Protocol):
    """One connection: requests one after another, each with a Content-Length."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._head = b""
        self._left = -1
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are no subclasses of asyncio's, but behave like them.
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Take a head, then a body."""
        if self._left < 0:
            self._head += data
            head, mark, data = self._head.partition(b"\r\n\r\n")
            if not mark:
                return
            self._head = b""
            lines = head.lower().split(b"\r\n")
            self._left = next(
                int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")
            )
            self._begin()
        self._sha256.update(data)
        os.write(self._file, data)
        self._pieces.put(data)
        self._left -= len(data)
        if self._left == 0:
            self._left = -1
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, self._finish).add_done_callback(self._answer)

    def _begin(self) -> None:
        self._sha256, self._md5 = hashlib.sha256(), hashlib.md5()
        self._path = self._folder / uuid.uuid4().hex
        self._file = os.open(self._path.with_suffix(".part"), os.O_WRONLY | os.O_CREAT, 0o600)
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._follower = threading.Thread(target=self._follow)
        self._follower.start()

    def _follow(self) -> None:
        while (piece := self._pieces.get()) is not None:
            self._md5.update(piece)

    def _finish(self) -> str:
        self._pieces.put(None)
        os.fsync(self._file)
        os.close(self._file)
        self._path.with_suffix(".part").rename(self._path)
        folder = os.open(self._folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        self._follower.join()
        return self._sha256.hexdigest() + self._md5.hexdigest()

    def _answer(self, _done: object) -> None:
        assert self._transport is not None
        self._transport.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")


async def serve(folder: Path) -> None:
    """Serve on a free port, which the first line of output names."""
    server = await asyncio.get_running_loop().create_server(lambda: Put(folder), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1])))
