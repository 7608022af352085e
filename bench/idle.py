"""What an idle worker process costs: CPU seconds by the kernel's count, over half a minute."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil

from bench.stage import Line, Workers, at_most, median, stage

SECONDS = 30.0


def run() -> Iterable[Line]:
    """Measure two idle workers."""
    with stage() as stage_:
        workers = Workers(
            2,
            "outbox",
            f"--database-url={stage_.database_url}",
            f"--redis-url={stage_.redis.url}",
        )
        try:
            workers.go()
            time.sleep(5)  # booting is not idling
            processes = [psutil.Process(pid) for pid in workers.pids()]
            before = [sum(process.cpu_times()[:2]) for process in processes]
            time.sleep(SECONDS)
            after = [sum(process.cpu_times()[:2]) for process in processes]
        finally:
            workers.stop()
    shares = [(end - start) / SECONDS * 100 for start, end in zip(before, after, strict=True)]
    yield at_most(
        "an idle worker", median(shares), 0.5, "% of a core", f"{SECONDS:.0f} s, 8 threads"
    )
