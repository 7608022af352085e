"""What every loop over bytes asks: whether there is time left for the call."""

from __future__ import annotations

from shared.core.clock import Deadline
from shared.storage.errors import DeadlinePassed


def in_time(deadline: Deadline, *, channel: str, action: str, key: str = "") -> None:
    """Raise DeadlinePassed when no time is left."""
    if deadline.expired():
        raise DeadlinePassed(
            f"channel {channel}: no time left for {action}", channel=channel, action=action, key=key
        )
