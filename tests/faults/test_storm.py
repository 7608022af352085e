"""Ten thousand objects while one process dies every two seconds and Redis is flushed every five."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from services.cli.supervisor import EmbeddedStack, python_environment
from shared.core.clock import utc_now
from shared.outbox.schema import tasks
from tests.faults.storm import Storm
from tests.servers.redis import RedisServer
from tests.support.eventually import eventually

LEASE, RENEW, DISPATCH_LEASE, SCAN = 3.0, 1.0, 8.0, 1.0
#: Beyond dispatch lease and two scans: a killed process boots, the last retries have their wait.
MARGIN_SECONDS = 20.0


def settings(database_url: str, redis_url: str) -> dict[str, str]:
    return {
        "BLOX_DATABASE_URL": database_url,
        "BLOX_REDIS_URL": redis_url,
        "BLOX_OUTBOX__LEASE_SECONDS": str(LEASE),
        "BLOX_OUTBOX__RENEW_SECONDS": str(RENEW),
        "BLOX_OUTBOX__DISPATCH_LEASE_SECONDS": str(DISPATCH_LEASE),
        "BLOX_OUTBOX__DISPATCH_MARGIN_SECONDS": "2",
        "BLOX_OUTBOX__DISPATCHED_GRACE_SECONDS": "2",
        "BLOX_OUTBOX__SCAN_SECONDS": str(SCAN),
        "BLOX_OUTBOX__GONE_AFTER_SECONDS": "1",
        "BLOX_OUTBOX__MAX_RECOVERIES": "50",
        "BLOX_OUTBOX__RECOVERY_MIN_SECONDS": "0.1",
        "BLOX_OUTBOX__RECOVERY_MAX_SECONDS": "1",
        "BLOX_STAGING__MIN_FREE_BYTES": "0",
        "BLOX_SHUTDOWN_SECONDS": "10",
        "BLOX_GRACE_SECONDS": "1",
        "BLOX_LOG__FORMAT": "json",
        "BLOX_SCHEDULER__CLEANUP_SECONDS": "2",
        "BLOX_SWEEPS__MIN_AGE_SECONDS": "2",
        "BLOX_SWEEPS__TOMBSTONE_SECONDS": "10",
    }


def weather(
    database_url: str, redis: RedisServer, directory: Path, *, objects: int, limit_seconds: float
) -> Storm:
    """Run a storm and then hold the system to everything that it promises."""
    stack = EmbeddedStack(directory / "stack", variables=settings(database_url, redis.url))
    with stack:
        storm = Storm(
            stack,
            objects=objects,
            clients=8,
            kill_every_seconds=2.0,
            flush_every_seconds=5.0,
            redis_url=redis.url,
        )
        storm.run(limit_seconds)
        assert storm.surprises == []
        assert storm.acknowledged == objects, f"only {storm.acknowledged} within {limit_seconds} s"
        settle(stack, database_url, storm)
        assert storm.wrong_reads() == []
        assert check(stack) == []
        print(
            f"{objects} objects, {storm.refused} tries refused or cut, {len(storm.kills)} kills "
            f"({', '.join(sorted(set(storm.kills)))}), {storm.flushes} flushes"
        )
    return storm


def settle(stack: EmbeddedStack, database_url: str, storm: Storm) -> None:
    """Hold the system to its word after the last kill.

    Within dispatch lease and two scans nothing runs without a living owner and nothing is stuck;
    the backlog then goes down without a pause until it is gone.
    """
    until = storm.last_kill + DISPATCH_LEASE + 2 * SCAN + MARGIN_SECONDS
    stack.wait_ready(MARGIN_SECONDS)
    engine = sa.create_engine(database_url)

    def count(where: sa.ColumnElement[bool]) -> int:
        with engine.connect() as connection:
            query = sa.select(sa.func.count()).select_from(tasks).where(where)
            return connection.scalar(query) or 0

    def overdue() -> int:
        past = utc_now() - dt.timedelta(seconds=2 * SCAN)
        leased = tasks.c.state.in_(("running", "dispatching"))
        return count(
            sa.or_(
                sa.and_(leased, tasks.c.lease_until < past),
                sa.and_(tasks.c.state == "scheduled", tasks.c.due_at < past),
            )
        )

    is_open = sa.and_(
        tasks.c.kind.in_(("upload.store", "review.check")),
        tasks.c.state.not_in(("completed", "cancelled")),
    )
    try:
        eventually(lambda: overdue() == 0, max(5.0, until - time.monotonic()))
        left = count(is_open)
        while left:

            def went_down(before: int = left) -> bool:
                return count(is_open) < before

            message = f"{left} tasks are open, and none of them ends"
            eventually(went_down, MARGIN_SECONDS, interval_seconds=0.2, message=message)
            left = count(is_open)
    finally:
        engine.dispose()


def check(stack: EmbeddedStack) -> list[dict[str, str]]:
    """Return what `blox check --deep` finds."""
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "check", "--deep", "--output", "json"],
        env=python_environment(stack.variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.databases("mariadb")
def test_ten_thousand_objects_outlive_kills_and_flushes(
    database_url: str, private_redis: RedisServer, tmp_path: Path
) -> None:
    storm = weather(database_url, private_redis, tmp_path, objects=10_000, limit_seconds=600.0)
    assert len(storm.kills) >= 10
    assert storm.flushes >= 5


@pytest.mark.timeout(300)
@pytest.mark.databases("mariadb")
def test_a_short_storm(database_url: str, private_redis: RedisServer, tmp_path: Path) -> None:
    storm = weather(database_url, private_redis, tmp_path, objects=800, limit_seconds=120.0)
    assert storm.kills


@pytest.mark.timeout(300)
@pytest.mark.databases("sqlite")
def test_a_short_storm_on_sqlite(
    database_url: str, private_redis: RedisServer, tmp_path: Path
) -> None:
    storm = weather(database_url, private_redis, tmp_path, objects=400, limit_seconds=150.0)
    assert storm.kills
