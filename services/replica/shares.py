"""Keeps some threads free of a target that does not answer: it must not hold up another's copies.

A breaker opens only after calls have failed, and one that hangs takes its time to fail. Until then
a silent target gets most of the threads of a process, never all.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from shared.catalog.channel_slots import ChannelSlots, resource_of
from shared.core.errors import ResourceBusy
from shared.storage.registry import OpenChannel

#: Seconds without any answer after which a target is silent.
SILENT_SECONDS = 1.0
#: Seconds after which a copy that found too many others waiting for its target is tried again.
WAIT_SECONDS = 10.0


class Shares:
    """How the threads of this process are shared out over targets. Thread-safe.

    Without `threads` nothing is limited.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        spare = max(1, (threads or 0) // 4)
        self._most = None if threads is None or threads < 2 else threads - spare

    @contextmanager
    def enter(self, opened: OpenChannel, slots: ChannelSlots) -> Iterator[None]:
        """Use a target in the block. Raises ResourceBusy, which parks the task uncounted."""
        name = opened.name
        with self._lock:
            is_crowded = self._most is not None and self._running[name] >= self._most
            if not is_crowded or opened.silent_seconds() < SILENT_SECONDS:
                self._running[name] += 1
                is_in = True
            else:
                is_in = False
        if not is_in:
            raise ResourceBusy(
                f"channel {name} does not answer those who use it now",
                resource=resource_of(name),
                after_seconds=slots.broken(name, WAIT_SECONDS),
            )
        try:
            yield
        finally:
            with self._lock:
                self._running[name] -= 1
