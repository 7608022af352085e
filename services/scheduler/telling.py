"""What a turn of a periodic job writes into the log: what it has done, and nothing otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def tell(log: Any, event: str, counts: Mapping[str, int], **facts: object) -> None:
    """Log the counts that are not 0; a turn without any is told at the level debug."""
    done = {name: count for name, count in counts.items() if count}
    if done:
        log.info(event, **facts, **done)
    else:
        log.debug(event, **facts)
