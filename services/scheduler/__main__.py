"""The process of the scheduler: composition root."""

from __future__ import annotations

import sys
import threading

from services.scheduler import ticks
from services.scheduler.backups import backups
from services.scheduler.cleanup import staging_cleanup
from services.scheduler.clock import Clock, watch
from services.scheduler.expiry import object_expiry
from services.scheduler.replica_backup import replica_backup
from shared.core.clock import Deadline, monotonic
from shared.outbox.compensator import Compensator
from shared.runtime.assembly import Parts
from shared.runtime.health import Check
from shared.runtime.process import Process
from shared.runtime.service import Running, run_service
from shared.runtime.settings import Settings
from shared.runtime.shutdown import Stage

#: Scans, filler, drains, statistics, cleanup and what they call at the same time.
_THREADS = 6
#: Share of the shutdown in which ticks and scans end.
_BACKGROUND_SHARE = 0.7


def main() -> int:
    """Run until a signal; returns the exit code."""
    # Ready without Redis: tasks then wait in the database, which is what it looks after.
    return run_service("scheduler", _start, needs_redis=False, threads=_threads)


def _threads(_settings: Settings) -> int:
    return _THREADS


def _start(process: Process, parts: Parts) -> Running:
    stopping = threading.Event()
    compensator = parts.outbox.compensator()
    made = [
        ticks.redelivery(compensator, parts),
        ticks.drained_regions(parts),
        ticks.statistics(parts, process.metrics),
        staging_cleanup(parts),
        replica_backup(parts, process.metrics),
        backups(parts, process.metrics),
        object_expiry(parts),
    ]
    watch(made, process.health, process.metrics)
    process.health.add_live("filler", _filler_check(compensator, process.settings))
    filler = threading.Thread(
        target=compensator.fill, args=(stopping,), name="outbox-filler", daemon=True
    )
    clock = Clock(made, stopping)
    parts.outbox.start_producer()
    compensator.begin()
    filler.start()
    clock.start()

    def stop(seconds: float) -> None:
        deadline = Deadline(seconds * 0.95)
        clock.close(deadline.remaining())
        filler.join(deadline.remaining(seconds))
        compensator.close()

    return Running(stages=(Stage("background", _BACKGROUND_SHARE, stop),))


def _filler_check(compensator: Compensator, settings: Settings) -> Check:
    def check() -> str | None:
        age = monotonic() - compensator.filler_turned
        return None if age <= settings.health.loop_seconds else f"last turn: {age:.0f} s ago"

    return check


if __name__ == "__main__":
    sys.exit(main())
