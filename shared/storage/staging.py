"""Staging: where bodies wait between the request that brought them and the worker that stores them.

A file channel with a writer for bodies that arrive in pieces, and a trash in which unclaimed files
lie for a while before they go for good.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager

from shared.core.clock import Deadline, utc_now
from shared.storage.channel import Entry, Found
from shared.storage.errors import ChannelFull, InvalidKey, ObjectMissing
from shared.storage.file import FileChannel
from shared.storage.keys import check_key, fresh_key
from shared.storage.md5 import Md5Helpers
from shared.storage.staging_writer import Expected, StagingWriter

_LIVE = "live"
_TRASH = "trash"
#: Seconds for one sweep of cut-short bodies.
_SWEEP_SECONDS = 60.0


class Staging:
    """The staging area of one deployment: a directory that api and workers share.

    Keys are made by `writer`; in the trash a file keeps its key, and readers find it there too.
    """

    def __init__(self, channel: FileChannel) -> None:
        self.channel = channel
        self._md5_helpers = Md5Helpers()

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
        be. `reserve_bytes` stay free on the file system.
        """
        free = self.free_bytes() - reserve_bytes
        if free <= (declared_size or 0):
            raise ChannelFull("staging is full", channel=self.channel.name, free_bytes=max(0, free))
        return StagingWriter(
            self.channel,
            fresh_key(_LIVE),
            Expected(size=declared_size, max_size=max_size, sha256=sha256, md5=md5),
            md5_helpers=self._md5_helpers,
            reserve_bytes=reserve_bytes,
        )

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
        return self.channel.move(key, _in_trash(key), touch=True)

    def restore(self, key: str) -> bool:
        """Take a file out of the trash; False if it is not there."""
        return self.channel.move(_in_trash(key), key)

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

    def free_bytes(self) -> int:
        """Return how much fits."""
        return self.channel.space()[0]

    def used_ratio(self) -> float:
        """Return how full the file system is, 0 to 1."""
        free, total = self.channel.space()
        return 1 - free / total if total else 1.0

    def _aged(
        self, where: str, shown_as: str, minimum_age_seconds: float, deadline: Deadline
    ) -> Iterator[Entry]:
        latest = utc_now() - dt.timedelta(seconds=minimum_age_seconds)
        for entry in self.channel.list(f"{where}/", deadline=deadline):
            if entry.modified_at <= latest:
                key = shown_as + entry.key.removeprefix(where)
                yield Entry(key=key, size=entry.size, modified_at=entry.modified_at)


def _in_trash(key: str) -> str:
    check_key(key)
    folder, _, rest = key.partition("/")
    if folder != _LIVE:
        raise InvalidKey("not a key of staging", key=key)
    return f"{_TRASH}/{rest}"
