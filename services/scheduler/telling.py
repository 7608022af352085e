"""What a turn of a periodic job writes into the log: what it has done, and nothing otherwise."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def tell(
    log: Any, event: str, counts: Mapping[str, int], *, looks: Collection[str] = (), **facts: object
) -> None:
    """Log the counts that are not 0, at the level debug when nothing was done.

    `looks` are counts of what was only looked at, or left as it is: alone they are no news.
    """
    found = {name: count for name, count in counts.items() if count}
    write = log.info if found.keys() - set(looks) else log.debug
    write(event, **facts, **found)
