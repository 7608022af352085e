"""A fresh SQLite file may be opened by many processes at once: none is told that it is locked."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import sqlalchemy as sa

from shared.outbox.db import Database

PROCESSES = 6
#: Without the patience of the switch to WAL, some of a thousand openings fail.
FILES = 200


def open_them(folder: str, barrier: Barrier) -> None:
    for number in range(FILES):
        engine = sa.create_engine(f"sqlite:///{folder}/{number}.db")
        barrier.wait(60)
        with Database(engine).transaction() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY)")
        engine.dispose()


def test_many_processes_may_open_a_fresh_file_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    processes = [
        context.Process(target=open_them, args=(str(tmp_path), barrier)) for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
