"""Whatever dies, freezes or forgets: each accepted task has one effect, or ends as was told."""

from __future__ import annotations

import random
import threading
from collections import defaultdict

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.outbox.invariants import task_breaches
from shared.outbox.outbox import Outbox
from shared.outbox.schema import tasks
from shared.outbox.walk import read_clock
from tests.faults.chaos import LEASE_SECONDS, Ledger, User, Weather, open_tasks, producer
from tests.servers.mariadb import MariaDB
from tests.servers.redis import RedisServer
from tests.support.effects import EFFECT, effects, effects_metadata
from tests.support.eventually import eventually

#: Seconds after the last fault until all is done: the backlog, leases, dispatch leases, back-offs.
QUIET_SECONDS = 60.0


def chaos(
    url: str,
    redis_server: RedisServer,
    namespace: str,
    *,
    seed: int,
    seconds: float,
    deadly: int,
    mariadb: MariaDB | None = None,
) -> None:
    """Run the weather of this seed for so long, and hold the outbox to all it has said."""
    print(f"chaos: seed {seed}, {seconds:.0f} s")
    outbox = producer(url, redis_server.url, namespace)
    effects_metadata.create_all(outbox.engine)
    user = User(outbox, random.Random(seed), deadly=deadly)
    weather = Weather(url, redis_server, namespace, random.Random(seed + 1), mariadb)
    stop = threading.Event()
    working = threading.Thread(target=user.run, args=(stop,))
    try:
        weather.start()
        working.start()
        weather.rage(seconds)
        stop.set()
        working.join(60)
        assert not working.is_alive()
        print("\n".join(weather.log))
        print(dict(user.ledger.told), f"rolled back: {user.ledger.rolled_back}")
        eventually(
            lambda: _is_quiet(outbox, weather),
            QUIET_SECONDS,
            interval_seconds=0.2,
            message=f"seed {seed}",
        )
        broken = _broken_promises(outbox, user.ledger)
        assert broken == [], f"seed {seed}"
        assert _breaches(outbox) == [], f"seed {seed}"
        scripts, client = outbox.context.scripts, outbox.context.redis
        eventually(lambda: client.llen(scripts.list_key(EFFECT.queue)) == 0, 20)
        assert client.hlen(scripts.messages_key(EFFECT.queue)) == 0, "messages without a list"
        assert weather.stop() == [0] * len(weather.workers)
    finally:
        stop.set()
        weather.clear()
        outbox.close()
        outbox.engine.dispose()


def _is_quiet(outbox: Outbox, weather: Weather) -> bool:
    # Deadly tasks go on killing theirs.
    weather.replace_dead()
    found = open_tasks(outbox)
    assert not found, str(found)
    return True


def _broken_promises(outbox: Outbox, ledger: Ledger) -> list[str]:
    with Session(outbox.engine.execution_options(read_only=True)) as session:
        query = sa.select(tasks.c.id, tasks.c.kind, tasks.c.state, tasks.c.fence)
        rows = {row.id: row for row in session.execute(query)}
        fences: dict[int, list[int]] = defaultdict(list)
        for task_id, fence in session.execute(sa.select(effects.c.task_id, effects.c.fence)):
            fences[task_id].append(fence)
    broken = [f"task {task_id} is gone" for task_id in ledger.promises if task_id not in rows]
    for task_id, row in rows.items():
        promise = ledger.promises.get(task_id)
        if promise is not None and row.state not in promise.states:
            broken.append(f"task {task_id} is {row.state}, promised was {promise.states}")
        # A commit that was not confirmed may have been one: then it is a task like any other.
        has_effect = row.kind == EFFECT.name if promise is None else promise.has_effect
        wanted = [row.fence] if has_effect and row.state == "completed" else []
        if fences[task_id] != wanted:
            broken.append(f"task {task_id} ({row.state}) has effects {fences[task_id]}")
    broken += [
        f"task {task_id} has an effect and no row" for task_id in fences.keys() - rows.keys()
    ]
    surplus = len(rows.keys() - ledger.promises.keys())
    if surplus and not ledger.unknown:
        broken.append(f"{surplus} tasks that were rolled back or refused are there")
    return broken


def _breaches(outbox: Outbox) -> list[str]:
    line = outbox.context.db.line()
    now = read_clock(outbox.context.db, line)
    line.close()
    with Session(outbox.engine.execution_options(read_only=True)) as session:
        found = task_breaches(session, now=now, late_seconds=2 * LEASE_SECONDS)
        return [f"{one.invariant}: {one.subject}: {one.detail}" for one in found]


@pytest.mark.timeout(240)
@pytest.mark.databases("mariadb")
def test_a_short_chaos(
    outbox_url: str, mariadb: MariaDB, private_redis: RedisServer, namespace: str
) -> None:
    chaos(outbox_url, private_redis, namespace, seed=20260, seconds=22.0, deadly=1, mariadb=mariadb)


@pytest.mark.timeout(240)
@pytest.mark.databases("sqlite")
def test_a_short_chaos_on_sqlite(
    outbox_url: str, private_redis: RedisServer, namespace: str
) -> None:
    chaos(outbox_url, private_redis, namespace, seed=20261, seconds=22.0, deadly=1)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.databases("mariadb")
def test_a_long_chaos(
    outbox_url: str, mariadb: MariaDB, private_redis: RedisServer, namespace: str
) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    chaos(outbox_url, private_redis, namespace, seed=seed, seconds=300.0, deadly=6, mariadb=mariadb)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.databases("sqlite")
def test_a_long_chaos_on_sqlite(
    outbox_url: str, private_redis: RedisServer, namespace: str
) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    chaos(outbox_url, private_redis, namespace, seed=seed, seconds=180.0, deadly=3)
