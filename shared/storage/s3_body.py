"""A body as boto3 wants it: with its checksums, sent in small reads at its pace."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable
from typing import Any

from shared.storage.body import Body

#: Below this a body is sent as plain bytes, in one go and without asking leave (Expect) first.
SMALL_BYTES = 64 * 1024


class PacedReader(io.RawIOBase):
    """Reads from memory, asking `in_time` and the body's pace (may sleep, may raise) each time."""

    def __init__(self, body: Body, in_time: Callable[[], None]) -> None:
        super().__init__()
        self._body = body
        self._in_time = in_time
        self._view = body.view()
        self._at = 0

    def __len__(self) -> int:
        return self._body.size

    def readable(self) -> bool:
        """See io.RawIOBase."""
        return True

    def seekable(self) -> bool:
        """See io.RawIOBase."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See io.RawIOBase."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._body.size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """See io.RawIOBase."""
        return self._at

    def read(self, size: int = -1) -> bytes:
        """See io.RawIOBase."""
        end = self._body.size if size < 0 else min(self._body.size, self._at + size)
        if end > self._at:
            self._in_time()
            self._body.pace(end - self._at)
        piece = bytes(self._view[self._at : end])
        self._at += len(piece)
        return piece


def payload(body: Body, in_time: Callable[[], None]) -> Any:
    """Return what to hand to boto3 as ``Body``."""
    if body.size <= SMALL_BYTES:
        if body.size:
            body.pace(body.size)
        return bytes(body.view())
    return PacedReader(body, in_time)


def sha256_hex(body: Body) -> str:
    """Return the body's sha256, hexadecimal."""
    return hashlib.sha256(body.view()).hexdigest()


def md5_of(body: Body) -> bytes:
    """Return the body's md5 (no secret hangs on it: it is what S3 compares)."""
    return hashlib.md5(body.view(), usedforsecurity=False).digest()


def base64_text(digest: bytes) -> str:
    """Return a digest as headers hold it."""
    return base64.b64encode(digest).decode()


def hex_of(text: str | None) -> str | None:
    """Return a base64 digest as hexadecimal; None for none, and for one over parts (``...-3``)."""
    if not text or "-" in text:
        return None
    return base64.b64decode(text).hex()
