"""Queues and tasks that share a process: each has its turn, is heard, and is isolated alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pydantic
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.core.clock import monotonic
from shared.core.errors import LeaseLost
from shared.outbox import Execution, Fail, Kind
from shared.outbox.outbox import Outbox
from shared.outbox.schema import tasks
from shared.outbox.stopping import Watchdog
from tests.support.effects import AllCredits, settings_for
from tests.support.eventually import eventually
from tests.support.filling import PLAIN
from tests.support.outbox import Bench

#: More than a process does between two looks at a queue that has been empty.
BACKLOG = 30_000


class Nothing(pydantic.BaseModel):
    """No payload."""


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
    made._enqueuer._births.credits = AllCredits()
    yield made
    made.drain(5)
    made.close()
    made.engine.dispose()


def put(outbox: Outbox, kind: Kind[Nothing], count: int = 1) -> list[int]:
    with Session(outbox.engine) as session, session.begin():
        return [one.id for one in outbox.enqueue_many(session, kind, [Nothing()] * count)]


def completed(outbox: Outbox) -> int:
    with Session(outbox.engine.execution_options(read_only=True)) as session:
        query = sa.select(sa.func.count()).where(tasks.c.state == "completed")
        return session.scalar(query) or 0


@pytest.mark.databases("mariadb")
@pytest.mark.timeout(330)
def test_a_backlog_of_quick_tasks_does_not_starve_a_slow_one(outbox: Outbox) -> None:
    started: list[int] = []

    @outbox.handler(QUICK)
    def quick(execution: Execution, payload: Nothing) -> None: ...

    @outbox.handler(SLOW)
    def slow(execution: Execution, payload: Nothing) -> None:
        started.append(completed(outbox))

    put(outbox, QUICK, BACKLOG)
    outbox.start_worker(threads=2)
    eventually(lambda: completed(outbox) > 500, 60)
    put(outbox, SLOW)
    # However slow the machine is: what counts is what was done before it.
    eventually(lambda: started, 120)
    assert started[0] < BACKLOG, "it has waited for the last of the quick ones"
    eventually(lambda: completed(outbox) == BACKLOG + 1, 120)


@pytest.mark.databases("mariadb")
def test_a_task_right_after_a_burst_is_heard_at_once(outbox: Outbox) -> None:
    """While the burst was in hand there was no room, and nobody listened for the queue's bell."""
    started: list[float] = []

    @outbox.handler(QUICK)
    def quick(execution: Execution, payload: Nothing) -> None:
        started.append(monotonic())
        execution.wait(0.004)

    outbox.start_worker(threads=8)
    waits: list[float] = []
    for number in range(1, 7):
        put(outbox, QUICK, 200)
        eventually(lambda number=number: completed(outbox) == 201 * number - 1, 30)
        put(outbox, QUICK)
        began = monotonic()
        eventually(lambda number=number: len(started) == 201 * number, 30)
        waits.append(started[-1] - began)
    # Without the bell a consumer looks once a second.
    assert sorted(waits)[2] < 0.3, waits


def test_two_suspects_of_two_queues_run_one_after_the_other(outbox: Outbox) -> None:
    running: list[str] = []
    most: list[int] = []

    def work(execution: Execution, payload: Nothing) -> None:
        running.append(execution.task.kind)
        most.append(len(running))
        execution.wait(0.3)
        running.remove(execution.task.kind)

    outbox.handler(QUICK)(work)
    outbox.handler(SLOW)(work)
    ids = [*put(outbox, QUICK), *put(outbox, SLOW)]
    with outbox.engine.begin() as connection:
        connection.execute(sa.update(tasks).values(recoveries=2))
    compensator = outbox.compensator()
    stop = threading.Event()
    scans = threading.Thread(target=compensator.run, args=(stop,), daemon=True)
    try:
        outbox.start_worker(threads=4)
        scans.start()
        eventually(lambda: completed(outbox) == len(ids), 40)
    finally:
        stop.set()
        scans.join(15)
    assert most == [1, 1]


def test_a_suspect_that_was_cancelled_does_not_close_its_queue(outbox: Outbox) -> None:
    release = threading.Event()
    started: list[int] = []

    @outbox.handler(SLOW)
    def slow(execution: Execution, payload: Nothing) -> None:
        started.append(execution.task.id)
        while not release.wait(0.05):
            execution.check()

    outbox.start_worker(threads=4)
    (innocent,) = put(outbox, SLOW)
    eventually(lambda: started == [innocent])
    with Session(outbox.engine) as session, session.begin():
        (suspect,) = (one.id for one in outbox.enqueue_many(session, SLOW, [Nothing()]))
        session.execute(sa.update(tasks).where(tasks.c.id == suspect).values(recoveries=2))
    # It waits until the process is empty, which takes as long as the other one runs.
    eventually(lambda: outbox.context.executions.find(suspect))
    assert outbox.cancel(suspect, by="ann").state == "cancelling"
    (other,) = put(outbox, SLOW)
    eventually(lambda: started == [innocent, other], 20)
    release.set()
    eventually(lambda: completed(outbox) == 2)


def test_a_message_moved_to_another_list_is_run_there(outbox: Outbox) -> None:
    started: list[int] = []

    @outbox.handler(QUICK)
    def quick(execution: Execution, payload: Nothing) -> None:
        started.append(execution.task.id)

    with Session(outbox.engine) as session, session.begin():
        answers = outbox.enqueue_many(session, QUICK, [Nothing()] * 3, region="eu-west")
    client, scripts = outbox.context.redis, outbox.context.scripts
    far, near = "quick.eu-west", "quick"
    eventually(lambda: client.llen(scripts.list_key(far)) == 3)
    for key in (scripts.list_key, scripts.messages_key):
        client.rename(key(far), key(near))
    outbox.start_worker(threads=2)
    eventually(lambda: sorted(started) == [one.id for one in answers], 20)
    eventually(lambda: completed(outbox) == 3)
    assert outbox.health().is_live
    assert outbox.worker is not None
    eventually(lambda: outbox.worker and outbox.worker.budget.held == 0)


def test_an_execution_displaced_by_a_newer_claim_is_still_watched(bench: Bench) -> None:
    """The process was frozen: another has brought the task back, and this one has it again."""
    bench.context.kinds.register(PLAIN)
    task_id = bench.put(PLAIN)
    older = bench.run(task_id)
    older.lease_ends = monotonic() - 1
    bench.set(task_id, state="dispatched", owner=None)
    newer = bench.run(task_id)
    assert bench.context.executions.snapshot() == [newer]
    watchdog = Watchdog(bench.context, bench.answers.give_back)
    watchdog.run_once()
    assert isinstance(older.stop_error, LeaseLost)
    assert newer.stop_error is None
    bench.answers.settle(older, Fail("late"))
    assert bench.context.executions.all() == [newer]
    assert bench.read(task_id).state == "running"
