"""What the handlers of the backup service work with."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.catalog.channel_slots import ChannelSlots
from shared.catalog.context import Catalogue
from shared.catalog.erasing import ChannelBook
from shared.outbox.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """The database, the catalogue and the channels; `page_versions` are enumerated at a time."""

    db: Database
    catalogue: Catalogue
    channels: ChannelBook
    slots: ChannelSlots = field(default_factory=ChannelSlots)
    page_versions: int = 200
