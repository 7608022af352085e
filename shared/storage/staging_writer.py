"""What every writer into staging is: it takes a body piece by piece and makes it durable.

How the bytes lie meanwhile is each kind's affair (see `staging_file`, `staging_objects`).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from shared.core.errors import InvalidError, TooLargeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the sender said of a body; None for what it did not say. Digests are hexadecimal."""

    size: int | None = None
    max_size: int | None = None
    sha256: str | None = None
    md5: str | None = None


@dataclass(frozen=True, slots=True)
class Staged:
    """A body that is safely in staging."""

    key: str
    size: int
    sha256: str
    md5: str


class StagingWriter(ABC):
    """One body on its way into staging.

    `write` is meant for the event loop: it hashes and keeps small pieces at memory speed, unless
    `waits_for` names something to wait for first. `finish` and `abort` wait for the disk or the
    network: call them in a thread. What a writer leaves that is neither finished nor aborted (a
    kill) lies outside of all keys, and a sweep removes it.
    """

    def __init__(self, key: str, expected: Expected) -> None:
        self._key = key
        self._expected = expected
        self._sha256 = hashlib.sha256()
        self._written = 0
        limits = [limit for limit in (expected.size, expected.max_size) if limit is not None]
        self._most = min(limits, default=None)

    @property
    def written_bytes(self) -> int:
        """How much has been written so far."""
        return self._written

    def waits_for(self, count: int) -> Future[None] | None:
        """Return what a `write` of so many bytes would block on; None when it would not.

        An event loop awaits it and asks again, a thread need not look. Its error, if it has one,
        comes from the next `write`.
        """
        return None

    @abstractmethod
    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next piece.

        Raises as soon as there is more than was declared or is allowed, and ChannelFull when it
        takes of the room that must stay free.
        """

    @abstractmethod
    def finish(self) -> Staged:
        """Compare what was declared, make the body durable and give it its key.

        Raises InvalidError (size_mismatch, sha256_mismatch, md5_mismatch); then, as after any other
        error, nothing is kept.
        """

    @abstractmethod
    def abort(self) -> None:
        """Drop the body. Does nothing after `finish` or an earlier `abort`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    def _demand_room(self, count: int) -> None:
        """Raise if `count` more bytes are more than was declared or is allowed."""
        if self._most is not None and self._written + count > self._most:
            raise self._too_much(self._written + count)

    def _too_much(self, size: int) -> InvalidError | TooLargeError:
        limit = self._expected.max_size
        if limit is not None and size > limit:
            return TooLargeError("the body is too large", limit_bytes=limit)
        return self._mismatch("size", self._expected.size, f"more than {self._expected.size}")

    def _demand(self, what: str, expected: object, actual: object) -> None:
        if expected is not None and actual != expected:
            raise self._mismatch(what, expected, actual)

    def _mismatch(self, what: str, expected: object, actual: object) -> InvalidError:
        return InvalidError(
            f"the body has another {what} than declared",
            code=f"{what}_mismatch",
            expected=expected,
            actual=actual,
        )
