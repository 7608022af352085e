"""What a checkpoint holds of a transfer, and how a whole is cut into parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: Parts of one upload, as S3 allows.
MOST_PARTS = 10_000
_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a multipart transfer has come; small, whatever the number of parts.

    Which parts the channel has is asked of the channel: it knows better than a checkpoint that may
    be one part behind.
    """

    upload_id: str
    part_bytes: int
    parts_done: int = 0
    bytes_done: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Progress:
        """Read what `to_json` gave."""
        return cls(
            upload_id=str(saved["upload_id"]),
            part_bytes=int(saved["part_bytes"]),
            parts_done=int(saved["parts_done"]),
            bytes_done=int(saved["bytes_done"]),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole cut into parts of one size, the last one shorter."""

    size: int
    part_bytes: int

    @classmethod
    def of(cls, size: int, part_bytes: int) -> Plan:
        """Return a plan with parts of `part_bytes`, larger only if there were too many of them."""
        least = -(-size // MOST_PARTS)
        if least > part_bytes:
            part_bytes = -(-least // _MEBIBYTE) * _MEBIBYTE
        return cls(size=size, part_bytes=part_bytes)

    def numbers(self) -> range:
        """Return the numbers of all parts."""
        return range(1, max(1, -(-self.size // self.part_bytes)) + 1)

    def offset(self, number: int) -> int:
        """Return where a part begins."""
        return (number - 1) * self.part_bytes

    def length(self, number: int) -> int:
        """Return how many bytes a part has; 0 for a number that is none of the plan's."""
        return max(0, min(self.part_bytes, self.size - self.offset(number)))
