"""A body on its way into staging. Opening and closing files waits for the disk: never on the loop.

A small body waits in memory for the thread that stores it anyway; a large one is written as it
comes.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.api.bodies import Sink
from services.api.uploads import Declared
from shared.core.errors import InvalidError
from shared.storage.staging import Staging
from shared.storage.staging_writer import Staged, StagingWriter

#: Largest body that is kept in memory, for the length of one request.
SMALL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Where bodies go, and what may be taken in."""

    staging: Staging
    declared: Declared
    max_bytes: int
    reserve_bytes: int

    @property
    def is_small(self) -> bool:
        """Tell whether the body is known to be small."""
        return self.declared.size is not None and self.declared.size <= SMALL_BYTES

    def open(self) -> StagingWriter:
        """Begin a file in staging. Blocks; raises ChannelFull when the body cannot fit."""
        return self.staging.writer(
            declared_size=self.declared.size,
            max_size=self.max_bytes,
            sha256=self.declared.sha256,
            md5=self.declared.md5,
            reserve_bytes=self.reserve_bytes,
        )


class SmallBody(Sink):
    """A body of at most `SMALL_BYTES`, whole."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._most = intake.declared.size or 0
        self._body = bytearray()

    def write(self, chunk: bytes) -> None:
        """Take the next bytes; InvalidError (`size_mismatch`) for more than were declared."""
        if len(self._body) + len(chunk) > self._most:
            raise InvalidError(
                "the body has another size than declared",
                code="size_mismatch",
                expected=self._most,
                actual=f"more than {self._most}",
            )
        self._body += chunk

    def finish(self) -> Staged:
        """Write it to staging, durably. Blocks; raises what a staging writer raises."""
        with self._intake.open() as writer:
            writer.write(bytes(self._body))
            return writer.finish()
