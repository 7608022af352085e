"""How a place of bytes is opened: a channel by its name, or staging."""

from __future__ import annotations

from collections.abc import Callable

from services.api.content import Door
from services.api.deps import Api


def opener(api: Api, channel: str | None) -> Callable[[], Door]:
    """Return what opens a channel, or staging for None; it may block, or raise."""

    def open_channel() -> Door:
        if channel is None:
            return Door(api.deps.staging)
        opened = api.deps.channels.open(channel)
        return Door(opened.channel, opened.download_limit)

    return open_channel
