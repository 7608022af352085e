"""Short ways to put content on a channel and to look at it."""

from __future__ import annotations

import hashlib

from shared.core.clock import Deadline
from shared.storage.body import Body
from shared.storage.channel import Channel, Stored
from shared.storage.source import Readable


def soon() -> Deadline:
    """Return a deadline that a call which works does not meet."""
    return Deadline(60)


def sha256(data: bytes) -> str:
    """Return the sha256 of `data`, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def put(channel: Channel, key: str, data: bytes, *, if_absent: bool = False) -> Stored:
    """Store `data` in one call."""
    return channel.put(key, Body(data), sha256=sha256(data), if_absent=if_absent, deadline=soon())


def read(channel: Readable, key: str, *, start: int = 0, length: int | None = None) -> bytes:
    """Read a range of an object, by default all of it."""
    with channel.get(key, start=start, length=length, deadline=soon()) as chunks:
        return b"".join(chunks)
