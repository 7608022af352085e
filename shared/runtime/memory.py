"""How the process's memory goes back to the system: large buffers at once.

Each thread that sends a part would otherwise leave its buffer behind in an arena of its own, and a
worker would hold many times what its transfers need.
"""

from __future__ import annotations

import ctypes

#: Parts of transfers are larger, what is read in one go is smaller.
LARGE_BYTES = 2 * 1024 * 1024
#: Arenas that threads share; the default is eight for each processor.
ARENAS = 4
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8


def give_back_large_buffers() -> bool:
    """Tell the C library to; False where it is not glibc. Before the first large allocation."""
    try:
        tell = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(tell(_MMAP_THRESHOLD, LARGE_BYTES)) and bool(tell(_ARENA_MAX, ARENAS))
