"""Staging: where bodies wait between the request that brought them and the worker that stores them.

A channel, a directory or a bucket, with a writer for bodies that arrive in pieces, and a trash in
which unclaimed files lie for a while before they go for good.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from shared.core.clock import Deadline, utc_now
from shared.storage.channel import Channel, Entry, Found, OpenUpload
from shared.storage.errors import InvalidKey, ObjectMissing
from shared.storage.file import FileChannel
from shared.storage.keys import check_key, fresh_key
from shared.storage.staging_file import FileGround
from shared.storage.staging_objects import ObjectGround
from shared.storage.staging_writer import Expected, StagingWriter

_LIVE = "live"
_TRASH = "trash"
#: Ends no key of another writer: a mark there has hexadecimal digits.
_JOINED = "-join"
#: Seconds for one sweep of cut-short bodies.
_SWEEP_SECONDS = 60.0


class Ground(Protocol):
    """What directories and buckets do each in their own way. Keys are those on the channel."""

    def writer(self, prefix: str, expected: Expected, *, reserve_bytes: int) -> StagingWriter:
        """Begin a body under a fresh key below `prefix`."""
        ...

    def trash(self, key: str, trash_key: str) -> bool:
        """Move a file, whose age then begins anew; False if it is not there."""
        ...

    def restore(self, trash_key: str, key: str) -> bool:
        """Move a file back; False if it is in neither place."""
        ...

    def space(self) -> tuple[int, int] | None:
        """Return (free, total) bytes; None where nobody can tell."""
        ...

    def open_uploads(self, prefix: str, *, deadline: Deadline) -> Iterator[OpenUpload]:
        """Yield the multipart uploads of bodies that are not complete."""
        ...

    def wrote(self, key: str, nodes: frozenset[str]) -> bool:
        """Tell whether one of these processes writes (or wrote) this key."""
        ...


class Staging:
    """The staging area of one deployment: a directory or a bucket that api and workers share.

    Keys are made by `writer`; in the trash a file keeps its key, and readers find it there too.
    Without a `ground` it is chosen by the channel.
    """

    def __init__(self, channel: Channel, ground: Ground | None = None) -> None:
        self.channel = channel
        self._ground: Ground
        if ground is not None:
            self._ground = ground
        elif isinstance(channel, FileChannel):
            self._ground = FileGround(channel)
        else:
            self._ground = ObjectGround(channel)

    def prepare(self, *, deadline: Deadline) -> None:
        """Make the directory if it is not there."""
        self.channel.prepare(deadline=deadline)

    def writer(
        self,
        *,
        declared_size: int | None = None,
        max_size: int | None = None,
        sha256: str | None = None,
        md5: str | None = None,
        reserve_bytes: int = 0,
    ) -> StagingWriter:
        """Begin a body. ChannelFull at once if `declared_size` cannot fit now.

        What is declared (sizes; `sha256` and `md5` in hexadecimal) is compared as soon as it can
        be. `reserve_bytes` stay free where a file system tells how much is.
        """
        expected = Expected(size=declared_size, max_size=max_size, sha256=sha256, md5=md5)
        return self._ground.writer(_LIVE, expected, reserve_bytes=reserve_bytes)

    def join_key(self) -> str:
        """Return a fresh key for a file that is put together of others.

        Whoever takes it names it elsewhere: any process may go on with it (`is_join_key`).
        """
        return f"{fresh_key(_LIVE)}{_JOINED}"

    @contextmanager
    def get(
        self, key: str, *, start: int = 0, length: int | None = None, deadline: Deadline
    ) -> Iterator[Iterator[bytes]]:
        """Read a file, wherever it lies. See Channel.get."""
        for place in self._places(key):
            opening = self.channel.get(place, start=start, length=length, deadline=deadline)
            try:
                chunks = opening.__enter__()
                break
            except ObjectMissing:
                continue
        else:
            raise ObjectMissing("no such file", channel=self.channel.name, key=key)
        try:
            yield chunks
        finally:
            opening.__exit__(None, None, None)

    def head(self, key: str, *, deadline: Deadline) -> Found | None:
        """Look at a file, wherever it lies. See Channel.head."""
        found = (self.channel.head(place, deadline=deadline) for place in self._places(key))
        return next((one for one in found if one is not None), None)

    def _places(self, key: str) -> tuple[str, str, str]:
        """Return where a file may lie; the first again, for one that is moved back meanwhile."""
        return key, _in_trash(key), key

    def remove(self, key: str, *, deadline: Deadline) -> None:
        """Remove a file for good, wherever it lies. One that is not there is fine."""
        self.channel.delete(key, deadline=deadline)
        self.channel.delete(_in_trash(key), deadline=deadline)

    def old(self, *, minimum_age_seconds: float, deadline: Deadline) -> Iterator[Entry]:
        """Yield the files that were finished at least that long ago."""
        return self._aged(_LIVE, _LIVE, minimum_age_seconds, deadline)

    def trash(self, key: str) -> bool:
        """Put a file into the trash, where its age begins anew; False if it is not there."""
        return self._ground.trash(key, _in_trash(key))

    def restore(self, key: str) -> bool:
        """Take a file out of the trash; False if it is not there.

        On some kinds it takes two calls, some time apart, until the trash holds it no more.
        """
        return self._ground.restore(_in_trash(key), key)

    def trashed(self, *, minimum_age_seconds: float, deadline: Deadline) -> Iterator[Entry]:
        """Yield what has lain in the trash for that long, under the keys it had before."""
        return self._aged(_TRASH, _LIVE, minimum_age_seconds, deadline)

    def purge(self, key: str, *, deadline: Deadline) -> None:
        """Remove a file from the trash for good; one that lies elsewhere stays."""
        self.channel.delete(_in_trash(key), deadline=deadline)

    def sweep_partial(self, *, minimum_age_seconds: float) -> int:
        """Remove bodies cut short by a kill and not touched for that long; returns how many."""
        return self.channel.sweep_partial(
            minimum_age_seconds=minimum_age_seconds, deadline=Deadline(_SWEEP_SECONDS)
        )

    def open_uploads(self, *, deadline: Deadline) -> Iterator[OpenUpload]:
        """Yield the multipart uploads of bodies that are under way, or were cut short."""
        return self._ground.open_uploads(_LIVE, deadline=deadline)

    def wrote(self, key: str, nodes: frozenset[str]) -> bool:
        """Tell whether one of these processes writes (or wrote) the body of this key."""
        return self._ground.wrote(key, nodes)

    def free_bytes(self) -> int | None:
        """Return how much fits; None where nobody can tell, as on object stores."""
        space = self._ground.space()
        return None if space is None else space[0]

    def used_ratio(self) -> float | None:
        """Return how full the file system is, 0 to 1; None where there is none."""
        space = self._ground.space()
        if space is None:
            return None
        free, total = space
        return 1 - free / total if total else 1.0

    def _aged(
        self, where: str, shown_as: str, minimum_age_seconds: float, deadline: Deadline
    ) -> Iterator[Entry]:
        latest = utc_now() - dt.timedelta(seconds=minimum_age_seconds)
        for entry in self.channel.list(f"{where}/", deadline=deadline):
            if entry.modified_at <= latest:
                key = shown_as + entry.key.removeprefix(where)
                yield Entry(key=key, size=entry.size, modified_at=entry.modified_at)


def is_join_key(key: str) -> bool:
    """Tell whether a key came from `Staging.join_key`."""
    return key.endswith(_JOINED)


def _in_trash(key: str) -> str:
    check_key(key)
    folder, _, rest = key.partition("/")
    if folder != _LIVE:
        raise InvalidKey("not a key of staging", key=key)
    return f"{_TRASH}/{rest}"
