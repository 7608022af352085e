"""What there is to copy, and what came of it: the words of `shared.catalog.copying`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from shared.catalog.channel_slots import ChannelSlots
from shared.catalog.erasing import ChannelBook
from shared.core.errors import CorruptError
from shared.outbox.db import Database

#: How bytes came: inside the provider, through this process, or on top of parts sent before.
Method = Literal["server", "stream", "resumed"]


@dataclass(frozen=True, slots=True)
class SourceCopy:
    """A verified copy that may be read. `location_id` is None for one that is no location.

    `etag` is what the channel told of it when it was proven.
    """

    location_id: int | None
    channel: str
    key: str
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class CopyJob:
    """What to copy, from where (tried in order), and the channel it goes to."""

    blob_id: int
    size_bytes: int
    sha256: str
    sources: tuple[SourceCopy, ...]
    target: str


@dataclass(frozen=True, slots=True)
class Damage:
    """A source that is not what it should be: missing, short, or other bytes."""

    source: SourceCopy
    code: str


@dataclass(frozen=True, slots=True)
class Copied:
    """Proven bytes under a fresh key whose row is still an intent."""

    location_id: int
    key: str
    etag: str
    bytes_sent: int
    method: Method
    source: SourceCopy


class NoSource(CorruptError):
    """Every copy that could be read is missing or damaged."""

    code = "no_source"


def _ignore(_damage: Damage) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyDeps:
    """What copying works with.

    `points` begins the names of the failpoints. `on_damage` is told of each damaged source, outside
    of all transactions.
    """

    db: Database
    channels: ChannelBook
    points: str = "copy"
    on_damage: Callable[[Damage], None] = _ignore
    slots: ChannelSlots = field(default_factory=ChannelSlots)
