"""An S3 look-alike in this process, for tests without root. It checks no signature and no checksum:
what depends on those runs on Ceph RGW.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from moto.server import ThreadedMotoServer


@dataclass(frozen=True)
class S3Server:
    """Where an S3 server listens and with which keys it lets clients in."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"


@contextlib.contextmanager
def running_moto() -> Iterator[S3Server]:
    """Run the server in a thread for the length of the block."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3Server(f"http://{host}:{port}", access_key="test", secret_key="testtest")
    finally:
        server.stop()
