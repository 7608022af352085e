"""Queues that share a process: a slow task beside a backlog of quick ones."""

from __future__ import annotations

from collections.abc import Iterator

import pydantic
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.outbox import Execution, Kind
from shared.outbox.outbox import Outbox
from shared.outbox.schema import tasks
from tests.support.effects import AllCredits, settings_for
from tests.support.eventually import eventually

BACKLOG = 10_000


class Nothing(pydantic.BaseModel):
    pass


QUICK = Kind(name="quick.run", payload=Nothing)
SLOW = Kind(name="slow.run", payload=Nothing)


@pytest.fixture
def outbox(outbox_url: str, redis_url: str, namespace: str) -> Iterator[Outbox]:
    made = Outbox(
        sa.create_engine(outbox_url, pool_size=20),
        redis_url,
        namespace=namespace,
        settings=settings_for(30.0),
    )
    made._enqueuer._credits = AllCredits()
    yield made
    made.drain(5)
    made.close()
    made.engine.dispose()


def completed(outbox: Outbox) -> int:
    with Session(outbox.engine.execution_options(read_only=True)) as session:
        query = sa.select(sa.func.count()).where(tasks.c.state == "completed")
        return session.scalar(query) or 0


@pytest.mark.databases("mariadb")
def test_a_backlog_of_quick_tasks_does_not_starve_a_slow_one(outbox: Outbox) -> None:
    started: list[int] = []

    @outbox.handler(QUICK)
    def quick(execution: Execution, payload: Nothing) -> None: ...

    @outbox.handler(SLOW)
    def slow(execution: Execution, payload: Nothing) -> None:
        started.append(completed(outbox))

    with Session(outbox.engine) as session, session.begin():
        outbox.enqueue_many(session, QUICK, [Nothing()] * BACKLOG)
    outbox.start_worker(threads=2)
    eventually(lambda: completed(outbox) > 500, 30)
    with Session(outbox.engine) as session, session.begin():
        outbox.enqueue(session, SLOW, Nothing())
    eventually(lambda: started, 30)
    assert started[0] < BACKLOG, "it has waited for the last of the quick ones"
    eventually(lambda: completed(outbox) == BACKLOG + 1, 60)
