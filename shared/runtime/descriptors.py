"""How many files and connections a process may have open: as many as the system lets it."""

from __future__ import annotations

import contextlib
import resource

#: Far more than a process needs; a table for more would only cost memory.
WANTED = 65_536


def raise_limit() -> int:
    """Raise the soft limit on descriptors up to the hard one; returns what holds now.

    Usual soft limits (1,024) are used up by idle connections, and then no file can be opened.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = WANTED if hard == unlimited else min(WANTED, hard)
    if soft != unlimited and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
