"""Cancel and supersede: at once what waits, by request what runs, audited, in one lock order."""

from __future__ import annotations

import random
import threading

import pytest
from sqlalchemy.orm import Session

from shared.core.errors import BloxError, ConflictError, NotFoundError, StopError
from shared.outbox.cancel import Superseded, cancel, supersede
from shared.outbox.kinds import Kind
from shared.outbox.manual import retry
from shared.outbox.signals import EndedWithoutAnswer
from tests.servers.redis import RedisServer
from tests.support.eventually import eventually
from tests.support.outbox import Bench, Things, Thread, Touch


@pytest.fixture
def kind(bench: Bench, things: Things) -> Kind[Touch]:
    made = things.kind()
    bench.context.kinds.register(made)
    return made


@pytest.mark.parametrize("state", ["pending", "scheduled", "blocked", "dispatching", "dispatched"])
def test_waiting_task_is_cancelled_at_once(
    bench: Bench, things: Things, kind: Kind[Touch], state: str
) -> None:
    task_id = bench.put(kind, Touch(thing_id=things.add(1)), tenant_id="acme")
    bench.set(task_id, state=state)
    answer = cancel(
        bench.context, bench.enqueuer, task_id, by="ann", reason="wrong", tenant_id="acme"
    )
    assert (answer.state, answer.is_new) == ("cancelled", True)
    row = bench.columns(task_id)
    assert (row["state"], row["error_code"]) == ("cancelled", "cancelled")
    assert row["error_detail"] == "ann: wrong"
    assert (row["attempt"], row["lease_until"]) == (0, None)
    assert row["finished_at"] is not None
    assert things.state(1) == "task cancelled"
    (audited,) = bench.audit(task_id)
    assert (audited["action"], audited["actor"], audited["reason"]) == ("cancel", "ann", "wrong")
    assert (audited["state_before"], audited["state_after"]) == (state, "cancelled")
    assert audited["tenant_id"] == "acme"
    (event,) = bench.events(task_id)
    assert (event["type"], event["data"]["from"]) == ("cancelled", state)
    assert bench.attempts(task_id) == []
    assert bench.seen(EndedWithoutAnswer) == [EndedWithoutAnswer("mail", "mail.send", "cancelled")]


def test_running_task_is_asked_once_and_its_owner_is_rung(
    bench: Bench, other: Bench, things: Things, kind: Kind[Touch]
) -> None:
    task_id = bench.put(kind, Touch(thing_id=things.add(1)))
    execution = bench.run(task_id)
    bell = bench.context.scripts.node_bell_key("node-1")
    answer = cancel(other.context, other.enqueuer, task_id, by="ann")
    assert (answer.state, answer.is_new) == ("cancelling", True)
    assert bench.context.redis.lpop(bell) is not None
    row = bench.columns(task_id)
    assert (row["state"], row["cancel_requested"]) == ("running", 1)
    assert (row["owner"], row["fence"]) == (execution.owner, execution.fence)
    again = cancel(other.context, other.enqueuer, task_id, by="bob")
    assert (again.state, again.is_new) == ("cancelling", False)
    assert bench.context.redis.lpop(bell) is None
    assert bench.columns(task_id)["error_detail"] == "ann"
    assert bench.event_types(task_id) == ["cancel_requested"]
    (audited,) = bench.audit(task_id)
    assert (audited["state_before"], audited["state_after"]) == ("running", "running")
    assert things.state(1) == "ready"
    assert bench.seen(EndedWithoutAnswer) == []


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
def test_ended_task_answers_its_state(bench: Bench, kind: Kind[Touch], state: str) -> None:
    task_id = bench.put(kind)
    bench.set(task_id, state=state)
    before = bench.columns(task_id)
    answer = cancel(bench.context, bench.enqueuer, task_id, by="ann")
    assert (answer.state, answer.is_new) == (state, False)
    assert bench.columns(task_id) == before
    assert bench.audit(task_id) == []


def test_task_of_another_tenant_is_not_there(bench: Bench, kind: Kind[Touch]) -> None:
    task_id = bench.put(kind, tenant_id="acme")
    with pytest.raises(NotFoundError):
        cancel(bench.context, bench.enqueuer, task_id, by="eve", tenant_id="evil")
    with pytest.raises(NotFoundError):
        cancel(bench.context, bench.enqueuer, task_id + 1, by="eve")
    assert bench.columns(task_id)["state"] == "pending"


def test_cancelled_task_frees_its_dedupe_key(bench: Bench, kind: Kind[Touch]) -> None:
    first = bench.put(kind, dedupe_key="k")
    assert bench.put(kind, dedupe_key="k") == first
    cancel(bench.context, bench.enqueuer, first, by="ann")
    assert bench.put(kind, dedupe_key="k") != first


def test_cancel_works_while_redis_is_away(
    outbox_url: str, private_redis: RedisServer, namespace: str
) -> None:
    kind = Kind(name="mail.send", payload=Touch)
    bench = Bench(outbox_url, private_redis.url, namespace=namespace, kinds=[kind])
    task_id = bench.put(kind)
    bench.run(task_id)
    private_redis.stop()
    assert cancel(bench.context, bench.enqueuer, task_id, by="ann").state == "cancelling"
    assert bench.columns(task_id)["cancel_requested"] == 1
    bench.close()


def test_supersede_ends_what_waits_and_asks_what_runs(
    bench: Bench, things: Things, kind: Kind[Touch]
) -> None:
    ids = [bench.put(kind, Touch(thing_id=things.add(number))) for number in range(1, 6)]
    bench.run(ids[1])
    bench.set(ids[2], state="failed", error_code="bounced")
    bench.set(ids[3], state="scheduled")
    with Session(bench.engine) as session, session.begin():
        for number in range(1, 6):
            things.lock(session, Touch(thing_id=number))
        done = supersede(bench.context, bench.enqueuer, session, [*reversed(ids), 10_000])
        assert bench.signals == []
    assert done == Superseded((ids[0], ids[3], ids[4]), (ids[1],))
    assert [bench.columns(task_id)["state"] for task_id in ids] == [
        *("cancelled", "running", "failed", "cancelled", "cancelled"),
    ]
    assert bench.columns(ids[0])["error_code"] == "superseded"
    assert bench.columns(ids[1])["error_code"] == "superseded"
    assert bench.columns(ids[2])["error_code"] == "bounced"
    assert [things.state(number) for number in (1, 2, 3)] == ["task cancelled", "ready", "ready"]
    assert {outcome for _, outcome in things.ended} == {"cancelled"}
    assert {task.error_code for task, _ in things.ended} == {"superseded"}
    assert len(bench.seen(EndedWithoutAnswer)) == 3
    assert bench.context.redis.lpop(bench.context.scripts.node_bell_key("node-1")) is not None
    assert bench.audit(ids[0]) == []


def test_supersede_that_is_rolled_back_did_not_happen(
    bench: Bench, things: Things, kind: Kind[Touch]
) -> None:
    waiting = bench.put(kind, Touch(thing_id=things.add(1)))
    running = bench.put(kind, Touch(thing_id=things.add(2)))
    bench.run(running)
    with Session(bench.engine) as session:
        supersede(bench.context, bench.enqueuer, session, [waiting, running])
        session.rollback()
        session.commit()
    assert bench.columns(waiting)["state"] == "pending"
    assert bench.columns(running)["cancel_requested"] == 0
    assert bench.signals == []
    assert bench.context.redis.lpop(bench.context.scripts.node_bell_key("node-1")) is None


@pytest.mark.databases("mariadb")
def test_cancels_retries_completions_and_supersedes_do_not_deadlock(
    bench: Bench, things: Things, kind: Kind[Touch]
) -> None:
    """All of them take the thing first and the task then: whatever meets, nobody is a victim."""
    things.add(1)
    ids = [bench.put(kind, Touch(thing_id=1)) for _ in range(4)]
    refused = (StopError, ConflictError, NotFoundError, AssertionError)
    stop = threading.Event()

    def again(act: object) -> None:
        while not stop.is_set():
            for task_id in ids:
                if act is not complete:
                    # The others would end each row before anybody could complete it.
                    stop.wait(random.uniform(0.0, 0.004))
                try:
                    act(task_id)  # type: ignore[operator]
                except refused:
                    continue

    def complete(task_id: int) -> None:
        execution = bench.run(task_id)
        try:
            with execution.complete(lock=[lambda s: things.lock(s, Touch(thing_id=1))]):
                pass
        except BloxError as error:
            bench.answers.settle(execution, error)

    def overwrite(task_id: int) -> None:
        with Session(bench.engine) as session, session.begin():
            things.lock(session, Touch(thing_id=1))
            supersede(bench.context, bench.enqueuer, session, ids)

    before = _deadlocks(bench)
    acts = [
        complete,
        overwrite,
        lambda task_id: cancel(bench.context, bench.enqueuer, task_id, by="ann"),
        lambda task_id: retry(bench.context, task_id, by="ann", force=True),
    ]
    threads = [Thread(lambda act=act: again(act)) for act in acts]
    stop.wait(3)
    try:
        # The one who completes meets rows that the others have just ended, more often than not.
        eventually(lambda: any(bench.columns(task_id)["fence"] for task_id in ids), 60)
    finally:
        stop.set()
    for thread in threads:
        thread.join_answer()
    assert _deadlocks(bench) == before


def _deadlocks(bench: Bench) -> int:
    with bench.engine.connect() as connection:
        found = connection.exec_driver_sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").one()
    return int(found[1])
