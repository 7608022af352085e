"""What the bodies of one process share on their way to an object store: memory, and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future


class Budget:
    """Bytes of memory that all bodies of a process share."""

    def __init__(self, total_bytes: int) -> None:
        self._lock = threading.Lock()
        self._free = total_bytes

    def take(self, count: int) -> bool:
        """Take so much, or nothing."""
        with self._lock:
            if count > self._free:
                return False
            self._free -= count
            return True

    def give(self, count: int) -> None:
        """Give back what was taken."""
        with self._lock:
            self._free += count


def send_apart(job: Callable[[bytearray], None], buffer: bytearray) -> Future[None]:
    """Run `job(buffer)` in a thread that the end of the process does not wait for.

    How many there are at once is bounded by the memory that their parts take.
    """
    future: Future[None] = Future()
    # From now on nobody can cancel it: a part is sent to its end.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            job(buffer)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="staging", daemon=True).start()
    return future
