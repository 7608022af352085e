"""Proves that what a channel keeps are the bytes that were to be stored."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from itertools import islice

from shared.core.clock import Deadline
from shared.storage.channel import Channel, Found
from shared.storage.crew import Crew, Stalled
from shared.storage.errors import ChannelTimeout, ChecksumMismatch, ObjectMissing
from shared.storage.registry import OpenChannel
from shared.storage.source import Source

#: A range that is read back at a time, and how many at once: that many are in memory.
RANGE_BYTES = 8 * 1024 * 1024
RANGES_AT_ONCE = 2

_Range = tuple[int, list[bytes]]


def verify(
    opened: OpenChannel,
    key: str,
    *,
    size: int,
    sha256: str,
    check: Callable[[], None] = lambda: None,
    deadline: Deadline,
) -> Found:
    """Compare size and content of an object with what they should be.

    The provider's own sha256 is taken where it has one over the whole object; otherwise the object
    is read back and hashed. Raises ObjectMissing or ChecksumMismatch. `check` is asked every half
    second.
    """
    with Crew[Found](check=check, deadline=deadline) as crew:
        pace = crew.pace(opened.download_limit)
        try:
            return crew.run(
                lambda: proven(
                    opened.channel, key, size=size, sha256=sha256, pace=pace, deadline=deadline
                )
            )
        except Stalled as error:
            raise ChannelTimeout(
                f"channel {opened.name}: nothing moves", channel=opened.name, key=key
            ) from error


def proven(
    channel: Channel,
    key: str,
    *,
    size: int,
    sha256: str,
    md5: str | None = None,
    found: Found | None = None,
    pace: Callable[[int], None],
    deadline: Deadline,
) -> Found:
    """Do the work of `verify` in this thread. `md5` is the right one, if the caller knows it.

    `found` is what the channel told of the object after its last write, if it was asked already.
    """
    if found is None:
        found = channel.head(key, deadline=deadline)
    if found is None:
        raise ObjectMissing("the object is not there", channel=channel.name, key=key)
    if found.size != size:
        raise _mismatch(channel, key, "size", size, found.size)
    if found.sha256 is not None:
        expected, actual = sha256, found.sha256
    elif md5 is not None and found.md5 is not None:
        expected, actual = md5, found.md5
    else:
        expected, actual = sha256, _read_back(channel, key, size, pace, deadline)
    if actual != expected:
        raise _mismatch(channel, key, "content", expected, actual)
    return found


def _read_back(
    channel: Channel, key: str, size: int, pace: Callable[[int], None], deadline: Deadline
) -> str:
    """Hash an object; over a network some ranges are under way while one is hashed."""
    if channel.kind == "file" or size <= RANGE_BYTES:
        digest = hashlib.sha256()
        with channel.get(key, start=0, length=size, deadline=deadline) as chunks:
            for chunk in chunks:
                pace(len(chunk))
                digest.update(chunk)
        return digest.hexdigest()
    # Whether anything moves is seen by the crew around this, by what `pace` is told.
    with Crew[_Range](check=_go_on, deadline=deadline, stall_seconds=math.inf) as crew:
        return _hash_ranges(channel, key, size, pace, crew, deadline)


def _go_on() -> None:
    """Ask nobody: whoever reads is told by `pace` to stop."""


def _hash_ranges(
    channel: Channel,
    key: str,
    size: int,
    pace: Callable[[int], None],
    crew: Crew[_Range],
    deadline: Deadline,
) -> str:
    def reader(start: int) -> Callable[[], _Range]:
        def read() -> _Range:
            data: list[bytes] = []
            length = min(RANGE_BYTES, size - start)
            with channel.get(key, start=start, length=length, deadline=deadline) as chunks:
                for chunk in chunks:
                    pace(len(chunk))
                    data.append(chunk)
            return start, data

        return read

    starts = iter(range(0, size, RANGE_BYTES))
    for start in islice(starts, RANGES_AT_ONCE):
        crew.start(reader(start))
    digest, hashed = hashlib.sha256(), 0
    there: dict[int, list[bytes]] = {}
    while hashed < size:
        # One is begun for each that was hashed: never more are in memory.
        while hashed not in there:
            start, data = crew.next_done()
            there[start] = data
        for chunk in there.pop(hashed):
            digest.update(chunk)
            hashed += len(chunk)
        if (following := next(starts, None)) is not None:
            crew.start(reader(following))
    return digest.hexdigest()


def source_sha256(
    source: Source, size: int, pace: Callable[[int], None], deadline: Deadline
) -> str:
    """Hash a whole source."""
    digest = hashlib.sha256()
    with source.open(0, size, deadline) as chunks:
        for chunk in chunks:
            pace(len(chunk))
            digest.update(chunk)
    return digest.hexdigest()


def _mismatch(
    channel: Channel, key: str, what: str, expected: object, actual: object
) -> ChecksumMismatch:
    return ChecksumMismatch(
        f"the {what} on the channel differs",
        channel=channel.name,
        key=key,
        what=what,
        expected=expected,
        actual=actual,
    )
