"""What the handlers of the restore service work with."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.catalog.channel_slots import ChannelSlots
from shared.catalog.context import Catalogue
from shared.catalog.erasing import ChannelBook
from shared.outbox.db import Database
from shared.storage.staging import Staging


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """The database, the catalogue, channels and staging.

    Staging keeps `reserve_bytes` free for what clients send. `page_entries` are dealt with before
    the cursor is written; `page_seconds` bounds that as well.
    """

    db: Database
    catalogue: Catalogue
    channels: ChannelBook
    staging: Staging
    slots: ChannelSlots = field(default_factory=ChannelSlots)
    reserve_bytes: int = 0
    page_entries: int = 200
    page_seconds: float = 5.0
