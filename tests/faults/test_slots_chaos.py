"""Limits under kills of workers and losses of Redis: never exceeded, and nobody is lost."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.outbox.invariants import task_breaches
from shared.outbox.schema import tasks
from shared.outbox.walk import read_clock
from tests.servers.redis import RedisServer
from tests.support.eventually import eventually
from tests.support.outbox import Bench
from tests.support.slot_worker import USE, Counter, SlotWorker, Use

LEASE_SECONDS = 3.0
SECONDS = 60.0
QUIET_SECONDS = 90.0
RESOURCES = ("channel:a", "channel:b")
LIMIT = 2


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.databases("mariadb")
def test_limits_hold_whatever_dies(
    outbox_url: str, private_redis: RedisServer, namespace: str, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"chaos of slots: seed {seed}")
    weather = random.Random(seed)
    (tmp_path / "limit").write_text(str(LIMIT))
    bench = Bench(outbox_url, private_redis.url, namespace=namespace, kinds=[USE])
    counter = Counter(tmp_path)
    arguments = (outbox_url, private_redis.url, namespace, tmp_path)
    count = 0

    def put(number: int) -> None:
        nonlocal count
        for _ in range(number):
            use = Use(seconds=weather.uniform(0.0, 0.2), resource=weather.choice(RESOURCES))
            bench.put(USE, use, tenant_id=weather.choice("xyz"))
            count += 1

    workers = [SlotWorker(*arguments, lease_seconds=LEASE_SECONDS) for _ in range(2)]
    pause = threading.Event()
    try:
        for _ in range(int(SECONDS / 2)):
            put(weather.randrange(12))
            match weather.randrange(6):
                case 0:
                    private_redis.flush()
                case 1:
                    private_redis.restart()
                case 2 | 3:
                    chosen = weather.randrange(len(workers))
                    workers[chosen].kill()
                    workers[chosen] = SlotWorker(*arguments, lease_seconds=LEASE_SECONDS)
            pause.wait(weather.uniform(0.5, 3.5))
        eventually(
            lambda: _completed(bench) == count,
            QUIET_SECONDS,
            interval_seconds=0.2,
            message=f"seed {seed}",
        )
    finally:
        for worker in workers:
            worker.__exit__()
    print(f"{count} tasks, at most {counter.most()} at a time")
    assert counter.most() == LIMIT
    line = bench.context.db.line()
    now = read_clock(bench.context.db, line)
    line.close()
    with Session(bench.engine) as session:
        assert list(task_breaches(session, now=now, late_seconds=0.0)) == []
    bench.close()


def _completed(bench: Bench) -> int:
    with bench.engine.connect() as connection:
        found = connection.scalar(
            sa.select(sa.func.count()).select_from(tasks).where(tasks.c.state == "completed")
        )
    return int(found or 0)
