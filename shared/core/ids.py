"""Names that are never used twice."""

from __future__ import annotations

import os
import socket
import time


def new_id() -> str:
    """Return 32 random hexadecimal digits."""
    return os.urandom(16).hex()


def timed_id() -> str:
    """Return 32 hexadecimal digits: the milliseconds of its birth (12 of them), then random ones.

    They sort by birth, and tell it without a look-up.
    """
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


def node_name() -> str:
    """Return a name for this process: host, process id and a random part."""
    host = socket.gethostname()[:24].encode("ascii", "replace").decode("ascii")
    return f"{host}-{os.getpid()}-{os.urandom(3).hex()}"
