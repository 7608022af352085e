"""Redis away, MariaDB restarted under load: what was accepted stays so, and goes on by itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from services.cli.readiness import is_ready
from services.cli.supervisor import EmbeddedStack
from shared.outbox.schema import tasks
from tests.faults.storm import Storm
from tests.faults.test_storm import check, settings, settle
from tests.servers.mariadb import MariaDB
from tests.servers.redis import RedisServer
from tests.support.effects import PLAIN, EffectWorker, Work, build, effects_metadata, starts
from tests.support.eventually import eventually, never

#: A backlog of a thousand takes seconds on an idle machine; others may run beside the test.
BACKLOG_SECONDS = 30.0


def states(engine: sa.Engine) -> dict[str, int]:
    with engine.connect() as connection:
        query = sa.select(tasks.c.state, sa.func.count()).group_by(tasks.c.state)
        return {row[0]: row[1] for row in connection.execute(query)}


@pytest.mark.databases("mariadb")
def test_a_backlog_that_grew_without_redis_is_done_once_when_it_is_back(
    outbox_url: str, private_redis: RedisServer, namespace: str
) -> None:
    args = (outbox_url, private_redis.url, namespace)
    outbox = build(*args)
    effects_metadata.create_all(outbox.engine)
    stopping = threading.Event()
    compensator = outbox.compensator()
    scans = threading.Thread(target=compensator.run, args=(stopping,), daemon=True)
    scans.start()
    try:
        with EffectWorker(*args, threads=8), EffectWorker(*args, threads=8):
            with Session(outbox.engine) as session, session.begin():
                first = outbox.enqueue(session, PLAIN, Work()).id
            eventually(lambda: states(outbox.engine).get("completed") == 1, 20)
            private_redis.stop()
            for _ in range(10):
                with Session(outbox.engine) as session, session.begin():
                    outbox.enqueue_many(session, PLAIN, [Work()] * 100)
            never(lambda: states(outbox.engine).get("completed", 0) > 1, during=1.0)
            private_redis.start()
            begin = time.monotonic()
            eventually(lambda: states(outbox.engine) == {"completed": 1001}, BACKLOG_SECONDS)
            print(f"1,000 tasks done {time.monotonic() - begin:.1f} s after Redis came back")
        with Session(outbox.engine) as session:
            twice = session.execute(
                sa.select(starts.c.task_id).group_by(starts.c.task_id).having(sa.func.count() > 1)
            ).all()
        assert (twice, first > 0) == ([], True)
    finally:
        stopping.set()
        scans.join(15)
        outbox.close()
        outbox.engine.dispose()


@pytest.mark.timeout(240)
@pytest.mark.databases("mariadb")
def test_without_redis_a_put_is_accepted_and_waits(
    database_url: str, private_redis: RedisServer, tmp_path: Path
) -> None:
    stack = EmbeddedStack(tmp_path / "stack", variables=settings(database_url, private_redis.url))
    with stack:
        storm = Storm(
            stack,
            objects=0,
            clients=0,
            kill_every_seconds=1.0,
            flush_every_seconds=1.0,
            redis_url=private_redis.url,
        )
        private_redis.stop()
        with httpx.Client(base_url=stack.api_url, timeout=30.0) as client:
            for number in range(20):
                path = f"/v1/buckets/storm/objects/waiting-{number}"
                answer = client.put(path, content=b"x" * (number + 1), headers=storm.headers)
                assert answer.status_code == 202, answer.text
                read = client.get(path, headers=storm.headers)
                assert read.content == b"x" * (number + 1)
            assert is_ready(stack.health_url("api"))
            eventually(lambda: not is_ready(stack.health_url("upload-1")), 30)
            private_redis.start()
            storm.last_kill = time.monotonic()
            settle(stack, database_url, storm)
            for number in range(20):
                path = f"/v1/buckets/storm/objects/waiting-{number}"
                read = client.get(path, headers=storm.headers)
                assert read.content == b"x" * (number + 1)
        assert check(stack) == []


@pytest.mark.timeout(300)
def test_mariadb_restarted_under_load_loses_nothing_that_was_acknowledged(
    private_mariadb: MariaDB, private_redis: RedisServer, tmp_path: Path
) -> None:
    database_url = private_mariadb.url(private_mariadb.create_database())
    stack = EmbeddedStack(tmp_path / "stack", variables=settings(database_url, private_redis.url))
    with stack:
        storm = Storm(
            stack,
            objects=600,
            clients=4,
            kill_every_seconds=3600.0,
            flush_every_seconds=3600.0,
            redis_url=private_redis.url,
        )
        run = threading.Thread(target=storm.run, args=(120.0,))
        run.start()
        eventually(lambda: storm.acknowledged > 50, 60)
        private_mariadb.restart()
        before = storm.acknowledged
        eventually(lambda: storm.acknowledged > before + 50, 60)
        private_mariadb.kill()
        private_mariadb.start()
        run.join()
        # Whatever was not accepted was a clean 503, or a connection that the client saw end.
        assert storm.surprises == []
        assert storm.acknowledged == 600
        storm.last_kill = time.monotonic()
        settle(stack, database_url, storm)
        assert storm.wrong_reads() == []
        assert check(stack) == []
