"""Running an outbox as the whole of a process: worker and compensation, until a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from shared.outbox.outbox import Outbox

#: Share of the shutdown time in which executions may end or be given back.
_DRAIN_SHARE = 0.7

_log = structlog.get_logger("outbox.run")


def run_until_signal(
    outbox: Outbox,
    queues: Sequence[str] | None,
    *,
    regions: Sequence[str],
    threads: int,
    compensate: bool,
    shutdown_seconds: float,
) -> None:
    """Start everything, wait for SIGTERM or SIGINT, stop everything in order."""
    stopping = threading.Event()

    def ask(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    scans: threading.Thread | None = None
    try:
        outbox.start_worker(queues, regions=regions, threads=threads)
        if compensate:
            compensator = outbox.compensator()
            scans = threading.Thread(
                target=compensator.run, args=(stopping,), name="outbox-scans", daemon=True
            )
            scans.start()
        _log.info("outbox_running", queues=queues, threads=threads, compensate=compensate)
        stopping.wait()
    finally:
        stopping.set()
        is_empty = outbox.drain(shutdown_seconds * _DRAIN_SHARE)
        if scans is not None:
            scans.join(2.0)
        has_ended = outbox.close(shutdown_seconds * (1 - _DRAIN_SHARE))
        for number, handler in before.items():
            signal.signal(number, handler)
        _log.info("outbox_stopped", drained=is_empty, ended=has_ended)
