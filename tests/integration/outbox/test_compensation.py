"""Two schedulers and a worker, a Redis that forgets everything again and again: one effect each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.outbox.outbox import Outbox
from shared.outbox.schema import tasks
from tests.servers.redis import RedisServer
from tests.support.effects import EFFECT, EffectWorker, Work, build, effects, effects_metadata
from tests.support.eventually import eventually

TASKS = 240
FLUSHES = 8


@contextlib.contextmanager
def _scheduler(url: str, redis_url: str, namespace: str) -> Iterator[Outbox]:
    outbox = build(url, redis_url, namespace, lease_seconds=3.0)
    stop = threading.Event()
    compensator = outbox.compensator()
    thread = threading.Thread(target=compensator.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield outbox
    finally:
        stop.set()
        thread.join(15)
        outbox.close()
        outbox.engine.dispose()
    assert not thread.is_alive()


def test_a_flushed_redis_costs_only_time_with_two_schedulers(
    outbox_url: str, private_redis: RedisServer, namespace: str
) -> None:
    args = (outbox_url, private_redis.url, namespace)
    with _scheduler(*args) as outbox, _scheduler(*args):
        effects_metadata.create_all(outbox.engine)

        def done() -> int:
            with outbox.engine.connect() as connection:
                query = sa.select(sa.func.count()).where(tasks.c.state == "completed")
                return connection.scalar(query) or 0

        with EffectWorker(*args, lease_seconds=3.0, threads=4):
            for turn in range(FLUSHES):
                with Session(outbox.engine) as session, session.begin():
                    for tenant in ("acme", "zoo", ""):
                        works = [Work(seconds=0.005)] * (TASKS // FLUSHES // 3)
                        outbox.enqueue_many(session, EFFECT, works, tenant_id=tenant)
                # Somewhere in the middle of the work of this turn.
                target = (turn + 1) * TASKS // FLUSHES // 2
                eventually(lambda target=target: done() >= target, 40)
                private_redis.flush()
            eventually(lambda: done() == TASKS, 60, message="not every task has come back")

        with outbox.engine.connect() as connection:
            per_task = connection.execute(
                sa.select(effects.c.task_id, sa.func.count()).group_by(effects.c.task_id)
            ).all()
            states = connection.execute(
                sa.select(tasks.c.state, sa.func.count()).group_by(tasks.c.state)
            ).all()
    assert len(per_task) == TASKS
    assert {count for _, count in per_task} == {1}
    assert [tuple(row) for row in states] == [("completed", TASKS)]
