"""What the benchmarks share: private servers, worker processes that start on a word, medians."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from shared.outbox.outbox import Outbox
from shared.outbox.schema import metadata
from tests.servers.mariadb import MariaDB, running_mariadb
from tests.servers.redis import RedisServer, running_redis

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Stage:
    """The servers of one run and an address of a fresh database."""

    mariadb: MariaDB
    redis: RedisServer
    database_url: str

    def outbox(self, **options: object) -> Outbox:
        """Return an outbox of this process on the stage."""
        engine = sa.create_engine(
            # A Session ends each transaction by itself: no need for a ROLLBACK at every return.
            self.database_url,
            pool_size=10,
            pool_reset_on_return=None,
        )
        return Outbox(engine, self.redis.url, namespace="bench", **options)  # type: ignore[arg-type]

    def reset(self) -> None:
        """Empty the tables and Redis."""
        for table in metadata.sorted_tables:
            self.mariadb.execute(f"TRUNCATE TABLE {self.database_url_name}.{table.name}")
        self.redis.flush()

    @property
    def database_url_name(self) -> str:
        """Return the name of the database."""
        return str(sa.make_url(self.database_url).database)

    def count(self, where: str) -> int:
        """Return how many task rows fit."""
        name = self.database_url_name
        rows = self.mariadb.execute(f"SELECT COUNT(*) FROM {name}.tasks WHERE {where}")
        return int(str(rows[0][0]))


@contextlib.contextmanager
def stage(*, buffer_pool_bytes: int = 1024**3) -> Iterator[Stage]:
    """Start MariaDB (default durability) and Redis, with the outbox's tables."""
    with running_mariadb(buffer_pool_bytes=buffer_pool_bytes) as mariadb, running_redis() as redis:
        url = mariadb.url(mariadb.create_database("bench"))
        engine = sa.create_engine(url)
        metadata.create_all(engine)
        engine.dispose()
        yield Stage(mariadb, redis, url)


class Workers:
    """Processes of `bench.worker` that have booted and wait for a word to begin."""

    def __init__(self, count: int, *args: str) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.worker", *args],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if line.strip() != "ready":
                raise RuntimeError(f"a worker did not boot: {line!r}")

    def go(self) -> None:
        """Let them consume."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def pids(self) -> list[int]:
        """Return their process ids."""
        return [process.pid for process in self._processes]

    def stop(self) -> None:
        """End them."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)


def wait_until(done: Callable[[], bool], seconds: float, every_seconds: float = 0.01) -> float:
    """Return the seconds until `done`; RuntimeError when it takes longer than `seconds`."""
    start = time.perf_counter()
    while not done():
        if time.perf_counter() - start > seconds:
            raise RuntimeError("the benchmark did not finish in time")
        time.sleep(every_seconds)
    return time.perf_counter() - start


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the result: what, measured value, what it should be, and whether it is."""

    what: str
    value: str
    target: str
    holds: bool


def at_least(what: str, ratio: float, target: float, detail: str) -> Line:
    """Return a line for a ratio that should be at least `target`."""
    return Line(what, f"{ratio:.2f} x ({detail})", f">= {target:g} x", ratio >= target)


def at_most(what: str, value: float, target: float, unit: str, detail: str = "") -> Line:
    """Return a line for a number that should be at most `target`."""
    shown = f"{value:.2f} {unit}" + (f" ({detail})" if detail else "")
    return Line(what, shown, f"<= {target:g} {unit}", value <= target)
