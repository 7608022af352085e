"""Free loopback ports. They lie below the range that the kernel gives to outgoing connections,
so that a client cannot take one between the choice and the bind.
"""

from __future__ import annotations

import random
import socket
import threading

_FIRST, _LAST = 14_000, 31_000
_handed_out: set[int] = set()
_lock = threading.Lock()


def free_port() -> int:
    """Return a port that is free now and that this process has not handed out before."""
    return free_range(1)


def free_range(count: int) -> int:
    """Return the first of `count` adjacent free ports."""
    with _lock:
        for _ in range(500):
            first = random.randrange(_FIRST, _LAST - count)
            wanted = range(first, first + count)
            if _handed_out.isdisjoint(wanted) and all(_is_free(port) for port in wanted):
                _handed_out.update(wanted)
                return first
    raise RuntimeError(f"no {count} adjacent free ports between {_FIRST} and {_LAST}")


def accepts(port: int, *, host: str = "127.0.0.1") -> bool:
    """Tell whether something listens there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
