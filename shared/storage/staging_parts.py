"""The parts of bodies on their way to an object store: filled in memory, and on disk when that is
short.

What one process holds is bounded, and no body waits for another: one that finds no place left ends
the one that has filled its part for too long, or is refused itself.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from shared.core.clock import monotonic
from shared.core.errors import UnavailableError

#: Bytes that a part takes at a time, or more if it needs them at once.
GRAIN_BYTES = 256 * 1024
#: Seconds in which a part should have come when others find no place.
SLOW_SECONDS = 30.0
#: Seconds that a part which was filled on disk waits for memory to be sent from.
_LOAD_SECONDS = 60.0


class StagingBusy(UnavailableError):
    """Too many bodies are on their way into staging."""

    code = "busy"


class BodyTooSlow(StagingBusy):
    """Others needed the place that this body was filling too slowly."""

    code = "body_too_slow"


class PartSpace:
    """The room for the parts of one process's bodies. Thread-safe.

    Half of the memory is for parts that are being filled, half for those that were filled on disk
    and are sent: sending comes to its end whatever the clients do.
    """

    def __init__(
        self,
        memory_bytes: int,
        disk_bytes: int,
        *,
        slow_seconds: float = SLOW_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._memory_bytes = memory_bytes // 2
        self._load_bytes = memory_bytes - memory_bytes // 2
        self._loading_bytes = 0
        self._disk_bytes = disk_bytes
        self._slow_seconds = slow_seconds
        self._clock = clock
        self._filling: dict[Part, float] = {}

    def part(self) -> Part:
        """Begin a part, which has nothing yet."""
        return Part(self)

    def grow(self, part: Part, count: int) -> None:
        """Let a part have so many bytes more; it may have to move to the disk. See Part.append."""
        with self._lock:
            if part.is_ended:
                raise BodyTooSlow("the body came too slowly while others found no place")
            while not self._grant(part, count):
                slow = self._slowest(part)
                if slow is None:
                    raise StagingBusy("no place is left for a part of the body")
                slow.end()
                self._release(slow)
            self._filling.setdefault(part, self._clock())

    def settle(self, part: Part) -> None:
        """Let a part be sent: nobody ends it any more. Raises BodyTooSlow if that has happened."""
        with self._lock:
            self._filling.pop(part, None)
            if part.is_ended:
                raise BodyTooSlow("the body came too slowly while others found no place")

    def release(self, part: Part) -> None:
        """Give back what a part has."""
        with self._lock:
            self._release(part)

    @contextmanager
    def loading(self, count: int) -> Iterator[None]:
        """Keep memory for a part from the disk, in turn with the others. Blocks; StagingBusy."""
        with self._changed:
            free = self._changed.wait_for(
                lambda: not self._loading_bytes or self._loading_bytes + count <= self._load_bytes,
                _LOAD_SECONDS,
            )
            if not free:
                raise StagingBusy("no memory to send a part from")
            self._loading_bytes += count
        try:
            yield
        finally:
            with self._changed:
                self._loading_bytes -= count
                self._changed.notify_all()

    def _grant(self, part: Part, count: int) -> bool:
        if not part.is_on_disk:
            if count <= self._memory_bytes:
                self._memory_bytes -= count
                part.granted_bytes += count
                return True
            if part.granted_bytes + count > self._disk_bytes:
                return False
            # All that it has moves along.
            self._memory_bytes += part.granted_bytes
            self._disk_bytes -= part.granted_bytes
            part.is_on_disk = True
        if count > self._disk_bytes:
            return False
        self._disk_bytes -= count
        part.granted_bytes += count
        return True

    def _slowest(self, asking: Part) -> Part | None:
        latest = self._clock() - self._slow_seconds
        slow = [
            (since, part)
            for part, since in self._filling.items()
            if part is not asking and since <= latest
        ]
        return min(slow, key=lambda one: one[0])[1] if slow else None

    def _release(self, part: Part) -> None:
        self._filling.pop(part, None)
        if part.is_on_disk:
            self._disk_bytes += part.granted_bytes
        else:
            self._memory_bytes += part.granted_bytes
        part.granted_bytes = 0


class Part:
    """The bytes of one part, as far as they have come. For one thread at a time.

    Without a space it is in memory and asks nobody: for what was held whole before.
    """

    def __init__(self, space: PartSpace | None = None) -> None:
        self._space = space
        self._size = 0
        self._buffer = bytearray()
        self._file: BinaryIO | None = None
        #: The space's, under its lock.
        self.granted_bytes = 0
        self.is_on_disk = False
        self.is_ended = False

    def __len__(self) -> int:
        return self._size

    def append(self, view: memoryview) -> None:
        """Take the next bytes, at memory speed. After a StagingBusy it can only be closed."""
        if self._space is not None:
            missing = self._size + len(view) - self.granted_bytes
            if missing > 0 or self.is_ended:
                self._space.grow(self, max(missing, GRAIN_BYTES))
        if self.is_on_disk:
            self._write(view)
        else:
            self._buffer += view
        self._size += len(view)

    @contextmanager
    def loaded(self) -> Iterator[bytearray]:
        """Give all bytes, to be sent; then the part is over. Blocks; StagingBusy, BodyTooSlow."""
        try:
            if self._space is None:
                yield self._buffer
                return
            self._space.settle(self)
            if self._file is None:
                yield self._buffer
                return
            with self._space.loading(self._size):
                yield self._read(self._file)
        finally:
            self.close()

    def end(self) -> None:
        """Drop what was ended for others; the next call tells whoever fills it."""
        self.is_ended = True
        self._buffer = bytearray()
        if self._file is not None:
            # Its place is another's from now on, and its client may say nothing for long.
            self._file.truncate(0)

    def close(self) -> None:
        """Let go of everything. May be repeated."""
        self._buffer = bytearray()
        if self._space is not None:
            # First, so that nobody ends a part whose file is closed.
            self._space.release(self)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, view: memoryview) -> None:
        try:
            if self._file is None:
                # It has no name: whatever kills this process, nothing is left.
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - `close` does
                _write_all(self._file, memoryview(self._buffer))
                self._buffer = bytearray()
            _write_all(self._file, view)
        except OSError as error:
            raise StagingBusy("no place is left on the disk", reason=str(error)) from error

    def _read(self, file: BinaryIO) -> bytearray:
        data = bytearray(self._size)
        view, done = memoryview(data), 0
        while done < self._size:
            count = os.preadv(file.fileno(), [view[done:]], done)
            if not count:
                raise StagingBusy("a part on the disk is short")
            done += count
        return data


def _write_all(file: BinaryIO, view: memoryview) -> None:
    while view:
        view = view[os.write(file.fileno(), view) :]
