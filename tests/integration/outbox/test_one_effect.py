"""Whatever happens to messages and workers, a task has one effect, and nobody sees an error."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.outbox.outbox import Outbox
from shared.outbox.schema import task_attempts, tasks
from tests.support.effects import (
    EFFECT,
    PLAIN,
    AllCredits,
    EffectWorker,
    Work,
    build,
    effects,
    effects_metadata,
    starts,
)
from tests.support.eventually import eventually, never

#: As short as a machine that runs other tests beside these can keep, nearly always.
LEASE = 2.0
#: For those that must not lose a lease, and wait for none.
CALM_LEASE = 30.0


class Stack:
    """A producer with its scans in this process, and worker processes as the test wants them."""

    def __init__(
        self, url: str, redis_url: str, namespace: str, *, lease_seconds: float = LEASE
    ) -> None:
        self.args = (url, redis_url, namespace)
        self.lease_seconds = lease_seconds
        self.outbox: Outbox = build(*self.args, lease_seconds=lease_seconds)
        effects_metadata.create_all(self.outbox.engine)
        self._stopping = threading.Event()
        compensator = self.outbox.compensator()
        self._scans = threading.Thread(target=compensator.run, args=(self._stopping,), daemon=True)
        self._scans.start()

    def dispatched(self) -> tuple[int, str]:
        """Leave one task in Redis before there is a consumer; returns its id and dispatch."""
        self.outbox._enqueuer._births.credits = AllCredits()
        task_id = self.enqueue()
        row = eventually(lambda: (r := self.row(task_id)).state == "dispatched" and r)
        return task_id, str(row.dispatch_id)

    def worker(self, failpoints: str = "", threads: int = 4) -> EffectWorker:
        return EffectWorker(
            *self.args,
            lease_seconds=self.lease_seconds,
            failpoints=failpoints,
            threads=threads,
        )

    def enqueue(self, kind: object = EFFECT, **work: object) -> int:
        with Session(self.outbox.engine) as session, session.begin():
            return self.outbox.enqueue(session, kind, Work(**work)).id  # type: ignore[arg-type]

    def row(self, task_id: int) -> sa.Row[tuple[object, ...]]:
        with Session(self.outbox.engine) as session:
            return session.execute(sa.select(tasks).where(tasks.c.id == task_id)).one()

    def state(self, task_id: int) -> str:
        return str(self.row(task_id).state)

    def count(self, table: sa.Table, task_id: int) -> int:
        with Session(self.outbox.engine) as session:
            query = sa.select(sa.func.count()).select_from(table).where(table.c.task_id == task_id)
            return session.scalar(query) or 0

    def close(self) -> None:
        self._stopping.set()
        self._scans.join(15)
        self.outbox.close()
        self.outbox.engine.dispose()


@pytest.fixture
def stack(outbox_url: str, redis_url: str, namespace: str) -> Iterator[Stack]:
    made = Stack(outbox_url, redis_url, namespace)
    yield made
    made.close()


@pytest.fixture
def calm_stack(outbox_url: str, redis_url: str, namespace: str) -> Iterator[Stack]:
    made = Stack(outbox_url, redis_url, namespace, lease_seconds=CALM_LEASE)
    yield made
    made.close()


@pytest.mark.parametrize("kind", [EFFECT, PLAIN], ids=["complete", "finisher"])
def test_a_task_runs_once_through_separate_processes(calm_stack: Stack, kind: object) -> None:
    stack = calm_stack
    with stack.worker(), stack.worker():
        ids = [stack.enqueue(kind) for _ in range(50)]
        for task_id in ids:
            eventually(lambda task_id=task_id: stack.state(task_id) == "completed", 60)
        assert [stack.count(starts, task_id) for task_id in ids] == [1] * 50
        assert all(stack.row(task_id).attempt == 1 for task_id in ids)


def test_one_message_in_two_lists_has_one_effect(stack: Stack) -> None:
    task_id, dispatch_id = stack.dispatched()
    # The same message again, as a restored Redis or a repeated push would leave it.
    pairs = [(task_id, dispatch_id)]
    stack.outbox.context.scripts.push("effects", pairs * 3)
    with stack.worker(), stack.worker():
        eventually(lambda: stack.state(task_id) == "completed", 20)
        stack.outbox.context.scripts.push("effects", pairs * 3)
        bells = stack.outbox.context.scripts.list_key("effects")
        eventually(lambda: stack.outbox.context.redis.llen(bells) == 0)
        never(lambda: stack.count(effects, task_id) != 1, during=0.5)


def test_a_message_of_an_old_dispatch_is_dropped(stack: Stack) -> None:
    task_id, _ = stack.dispatched()
    stack.outbox.context.scripts.push("effects", [(task_id, "0" * 32)])
    with stack.worker():
        eventually(lambda: stack.state(task_id) == "completed", 20)
        never(lambda: stack.count(effects, task_id) != 1, during=0.5)


@pytest.mark.parametrize("point", ["fetch.after", "claim.before", "claim.after"])
def test_a_worker_killed_around_its_claim_costs_only_time(stack: Stack, point: str) -> None:
    task_id, _ = stack.dispatched()
    with stack.worker(failpoints=f"{point}=kill") as doomed:
        eventually(lambda: doomed.process.poll() is not None, 20)
    with stack.worker():
        eventually(lambda: stack.state(task_id) == "completed", 30)
    assert stack.count(effects, task_id) == 1
    assert stack.row(task_id).error_code is None


@pytest.mark.parametrize("kind", [EFFECT, PLAIN], ids=["complete", "finisher"])
def test_a_worker_stopped_past_its_lease_commits_nothing(stack: Stack, kind: object) -> None:
    with stack.worker() as frozen:
        task_id = stack.enqueue(kind, seconds=1.0)
        eventually(lambda: stack.count(starts, task_id) == 1, 20)
        frozen.pause()
        with stack.worker():
            eventually(lambda: stack.state(task_id) == "completed", 30)
            winner = stack.row(task_id)
            frozen.resume()
            # The frozen one goes on, finds its lease gone, and leaves everything as it is.
            never(lambda: stack.row(task_id).fence != winner.fence, during=2.0)
        assert frozen.process.poll() is None, "losing a lease does not end a process"
    assert stack.count(starts, task_id) == 2
    assert stack.count(effects, task_id) == (1 if kind is EFFECT else 0)
    assert (winner.state, winner.fence) == ("completed", 2)


def test_a_cancel_that_was_acknowledged_never_commits(stack: Stack) -> None:
    with stack.worker(threads=8):
        for seconds in (0.3, 0.31, 0.32, 0.33, 0.34):
            task_id = stack.enqueue(seconds=seconds)
            eventually(lambda task_id=task_id: stack.count(starts, task_id) == 1, 20)
            answer = stack.outbox.cancel(task_id, by="test", reason="at the last moment")
            assert answer.state in {"cancelling", "completed"}
            if answer.state == "cancelling":
                eventually(lambda task_id=task_id: stack.state(task_id) == "cancelled", 20)
                assert stack.count(effects, task_id) == 0


def test_a_task_that_kills_its_workers_fails_alone(stack: Stack) -> None:
    """It ends as crashed; those that were fetched with it all complete."""
    deadly = stack.enqueue(PLAIN, deadly=True)
    with stack.outbox.engine.begin() as connection:
        connection.execute(sa.update(tasks).values(recoveries=49))
    others = [stack.enqueue() for _ in range(10)]
    for _ in range(6):
        with stack.worker() as worker:
            eventually(
                lambda worker=worker: (
                    worker.process.poll() is not None or stack.state(deadly) == "failed"
                ),
                30,
            )
        if stack.state(deadly) == "failed":
            break
    assert stack.row(deadly).error_code == "crashed"
    with stack.worker():
        for task_id in others:
            eventually(lambda task_id=task_id: stack.state(task_id) == "completed", 30)
    assert [stack.count(effects, task_id) for task_id in others] == [1] * 10


def test_a_terminated_worker_gives_its_task_back_without_an_attempt(stack: Stack) -> None:
    with stack.worker() as first:
        task_id = stack.enqueue(seconds=30.0)
        eventually(lambda: stack.count(starts, task_id) == 1, 20)
        assert first.stop() == 0
    back = stack.row(task_id)
    assert (back.attempt, back.recoveries, back.error_code) == (0, 0, None)
    assert back.state in {"pending", "dispatching", "dispatched"}
    with Session(stack.outbox.engine) as session:
        attempts = session.scalar(sa.select(sa.func.count()).select_from(task_attempts))
    assert attempts == 0
