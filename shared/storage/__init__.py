"""Floor 1: channels, transfers and staging. Imports nothing of the project but `shared.core`."""

from __future__ import annotations

from shared.storage.channel import Channel
from shared.storage.errors import ChannelError, SourceError
from shared.storage.keys import fresh_key
from shared.storage.progress import Progress
from shared.storage.registry import Channels, OpenChannel, prepare_channel
from shared.storage.source import ChannelSource
from shared.storage.spec import ChannelSpec
from shared.storage.staging import Staging
from shared.storage.transfer import Transferred, transfer
from shared.storage.verify import verify

__all__ = [
    "Channel",
    "ChannelError",
    "ChannelSource",
    "ChannelSpec",
    "Channels",
    "OpenChannel",
    "Progress",
    "SourceError",
    "Staging",
    "Transferred",
    "fresh_key",
    "prepare_channel",
    "transfer",
    "verify",
]
