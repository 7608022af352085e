"""The threads that send parts to an object store while the next ones come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def send_apart(job: Callable[[T], None], part: T) -> Future[None]:
    """Run `job(part)` in a thread that the end of the process does not wait for.

    How many there are at once is bounded by the room that their parts take.
    """
    future: Future[None] = Future()
    # From now on nobody can cancel it: a part is sent to its end.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            job(part)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="staging", daemon=True).start()
    return future
