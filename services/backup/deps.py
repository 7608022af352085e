"""What the handlers of the backup service work with."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.catalog.channel_slots import ChannelSlots
from shared.catalog.context import Catalogue
from shared.catalog.erasing import ChannelBook
from shared.outbox.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """The database, the catalogue and the channels.

    `page_versions` are enumerated at a time. `settle_seconds` after a snapshot no commit is under
    way any more that began before it: beyond the time limit of the outbox's transactions.
    """

    db: Database
    catalogue: Catalogue
    channels: ChannelBook
    slots: ChannelSlots = field(default_factory=ChannelSlots)
    page_versions: int = 200
    settle_seconds: float = 10.0
