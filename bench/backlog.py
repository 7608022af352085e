"""Fifty thousand tasks that wait in the database, through the window, by two worker processes."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from bench.drain import BACKLOG, PROCESSES, ROUNDS, drain_dramatiq, insert
from bench.stage import Line, Stage, Workers, at_least, median, stage, wait_until


def drain_backlog(stage_: Stage) -> float:
    """Return tasks per second, from the word to the last committed row."""
    stage_.reset()
    insert(stage_, BACKLOG, "pending")
    outbox = stage_.outbox()
    compensator = outbox.compensator()
    stopping = threading.Event()
    workers = Workers(
        PROCESSES,
        "outbox",
        f"--database-url={stage_.database_url}",
        f"--redis-url={stage_.redis.url}",
    )
    thread = threading.Thread(target=compensator.run, args=(stopping,), daemon=True)
    try:
        workers.go()
        thread.start()
        seconds = wait_until(
            lambda: stage_.count("state = 'completed'") >= BACKLOG, 120, every_seconds=0.1
        )
    finally:
        workers.stop()
        stopping.set()
        thread.join(10)
        outbox.close()
    return BACKLOG / seconds


def run() -> Iterable[Line]:
    """Measure and compare."""
    ours: list[float] = []
    plain: list[float] = []
    with stage() as stage_:
        for _ in range(ROUNDS):
            ours.append(drain_backlog(stage_))
            plain.append(drain_dramatiq(stage_, None))
    base = median(plain)
    yield at_least(
        "50,000 in the database through the window, against plain Dramatiq",
        median(ours) / base,
        1.5,
        f"{median(ours):,.0f}/s, Dramatiq {base:,.0f}/s",
    )
