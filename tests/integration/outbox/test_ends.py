"""Ends without a handler: the hook is called in the same transaction, or by a settle task."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.core.errors import TransientError
from shared.outbox import settling
from shared.outbox.cancel import cancel, supersede
from shared.outbox.ends import End
from shared.outbox.holding import hold, take
from shared.outbox.kinds import EndedTask, Kind
from shared.outbox.manual import retry
from shared.outbox.rows import TaskRow
from shared.outbox.schema import tasks
from shared.outbox.signals import EndedWithoutAnswer
from shared.outbox.states import State
from tests.support.outbox import Bench, Things, Thread, Touch
from tests.support.outbox import things as table

CRASHED = End(state=State.FAILED, code="crashed", detail="lost 6 times", crashed=True)


def _settles(bench: Bench) -> list[int]:
    with bench.engine.connect().execution_options(read_only=True) as connection:
        found = connection.scalars(
            sa.select(tasks.c.id).where(tasks.c.kind == "mail.settle").order_by(tasks.c.id)
        )
        return list(found)


def _settle(bench: Bench, task_id: int) -> None:
    """Run a settle task as a worker would."""
    parts = settling.settle_kind("mail", bench.context)
    if bench.context.kinds.find("mail.settle") is None:
        bench.context.kinds.register(parts.kind)
    execution = bench.run(task_id)
    try:
        parts.handler(execution, parts.kind.load(execution.task.payload))
    except TransientError as error:
        bench.answers.settle(execution, error)
    if not execution.completed:
        with execution.complete():
            pass


def test_crashed_task_fails_with_its_hook_and_counts(bench: Bench, things: Things) -> None:
    kind = things.kind()
    bench.context.kinds.register(kind)
    task_id = bench.put(kind, Touch(thing_id=things.add(3)))
    execution = bench.run(task_id)
    bench.set(task_id, recoveries=5, crashes=7)

    def judge(row: TaskRow) -> End | None:
        return CRASHED if row.owner == execution.owner else None

    assert bench.ends.end(task_id, judge) is not None
    row = bench.columns(task_id)
    assert (row["state"], row["error_code"], row["attempt"]) == ("failed", "crashed", 0)
    assert (row["recoveries"], row["crashes"]) == (6, 8)
    assert things.state(3) == "task failed"
    (attempt,) = bench.attempts(task_id)
    assert (attempt["outcome"], attempt["owner"]) == ("failed", execution.owner)
    assert bench.event_types(task_id) == ["failed"]
    assert bench.seen(EndedWithoutAnswer) == [EndedWithoutAnswer("mail", "mail.send", "failed")]


def test_judge_may_leave_the_task_alone(bench: Bench, things: Things) -> None:
    kind = things.kind()
    bench.context.kinds.register(kind)
    task_id = bench.put(kind, Touch(thing_id=things.add(3)))
    before = bench.columns(task_id)
    assert bench.ends.end(task_id, lambda row: None) is None
    assert bench.ends.end(task_id + 99, lambda row: CRASHED) is None
    assert bench.columns(task_id) == before
    assert things.ended == []
    assert bench.signals == []


def test_illegal_end_is_refused(bench: Bench) -> None:
    bench.context.kinds.register(Kind(name="mail.send", payload=Touch))
    task_id = bench.put("mail.send")
    with pytest.raises(ValueError, match="no end from pending to failed"):
        bench.ends.end(task_id, lambda row: CRASHED)


def test_process_without_the_kind_leaves_the_hook_to_one_settle_task(
    bench: Bench, other: Bench, things: Things
) -> None:
    kind = things.kind()
    bench.context.kinds.register(kind)
    task_id = bench.put(kind, Touch(thing_id=things.add(3)), tenant_id="acme", region="eu")
    assert cancel(other.context, other.enqueuer, task_id, by="ann").state == "cancelled"
    assert things.state(3) == "ready"
    (settle_id,) = _settles(bench)
    row = bench.columns(settle_id)
    assert (row["queue"], row["region"], row["tenant_id"]) == ("mail", "eu", "acme")
    assert row["dedupe_key"] == f"settle:{task_id}"
    with Session(other.engine) as session, session.begin():
        # Another end of the same task while one waits.
        other.ends.enqueue_settle(session, other.read(task_id))
    assert _settles(bench) == [settle_id]
    _settle(bench, settle_id)
    assert things.state(3) == "task cancelled"
    ((task, outcome),) = things.ended
    assert (task.id, task.error_code, outcome) == (task_id, "cancelled", "cancelled")
    assert bench.columns(settle_id)["state"] == "completed"


def test_settle_does_nothing_when_the_task_lives_again(
    bench: Bench, other: Bench, things: Things
) -> None:
    kind = things.kind()
    bench.context.kinds.register(kind)
    task_id = bench.put(kind, Touch(thing_id=things.add(3)))
    cancel(other.context, other.enqueuer, task_id, by="ann")
    retry(bench.context, task_id, by="ann")
    (settle_id,) = _settles(bench)
    _settle(bench, settle_id)
    assert things.ended == []
    assert things.state(3) == "ready"
    assert bench.columns(settle_id)["state"] == "completed"


@pytest.mark.databases("mariadb")
def test_settle_does_nothing_when_the_task_is_retried_under_its_eyes(
    bench: Bench, other: Bench, things: Things
) -> None:
    """The manual retry commits between the settle's first look and its locks."""
    is_armed = [True]

    def locks(session: Session, payload: Touch) -> None:
        if is_armed[0]:
            is_armed[0] = False
            retry(bench.context, task_id, by="ann")
        things.lock(session, payload)

    bench.context.kinds.register(
        Kind(name="mail.send", payload=Touch, locks=locks, on_end=things.on_end)
    )
    task_id = bench.put("mail.send", Touch(thing_id=things.add(3)))
    cancel(other.context, other.enqueuer, task_id, by="ann")
    (settle_id,) = _settles(bench)
    _settle(bench, settle_id)
    assert not is_armed[0]
    assert bench.columns(task_id)["state"] == "pending"
    assert things.ended == []
    assert bench.columns(settle_id)["state"] == "completed"


def test_settle_of_a_purged_task_ends_well(bench: Bench, other: Bench, things: Things) -> None:
    kind = things.kind()
    bench.context.kinds.register(kind)
    task_id = bench.put(kind, Touch(thing_id=things.add(3)))
    cancel(other.context, other.enqueuer, task_id, by="ann")
    with bench.engine.begin() as connection:
        connection.execute(sa.delete(tasks).where(tasks.c.id == task_id))
    (settle_id,) = _settles(bench)
    _settle(bench, settle_id)
    assert bench.columns(settle_id)["state"] == "completed"


def test_settle_waits_for_a_worker_that_knows_the_kind(
    bench: Bench, other: Bench, things: Things
) -> None:
    bench.context.kinds.register(things.kind())
    task_id = bench.put("mail.send", Touch(thing_id=things.add(3)))
    cancel(other.context, other.enqueuer, task_id, by="ann")
    (settle_id,) = _settles(bench)
    parts = settling.settle_kind("mail", other.context)
    execution = other.run(settle_id)
    with pytest.raises(TransientError):
        parts.handler(execution, parts.kind.load(execution.task.payload))


def test_payload_of_a_newer_version_is_settled_elsewhere(
    bench: Bench, other: Bench, things: Things
) -> None:
    bench.context.kinds.register(things.kind(version=2))
    task_id = bench.put("mail.send", Touch(thing_id=things.add(3)))
    other.context.kinds.register(things.kind(version=1))
    cancel(other.context, other.enqueuer, task_id, by="ann")
    assert things.ended == []
    (settle_id,) = _settles(bench)
    _settle(bench, settle_id)
    assert things.state(3) == "task cancelled"


def test_hook_that_raises_does_not_keep_the_task_from_ending(bench: Bench, things: Things) -> None:
    bench.context.kinds.register(things.kind())
    task_id = bench.put("mail.send", Touch(thing_id=things.add(3)))
    things.fail_on_end = KeyError("a mistake")
    bench.answers.settle(bench.run(task_id), ValueError("x"))
    things.fail_on_end = KeyError("a mistake")
    assert cancel(bench.context, bench.enqueuer, task_id, by="ann").state == "cancelled"
    assert bench.columns(task_id)["state"] == "cancelled"
    # What the hook had written before it raised is undone.
    assert things.state(3) == "ready"
    (settle_id,) = _settles(bench)
    _settle(bench, settle_id)
    assert things.state(3) == "task cancelled"


def test_hook_refused_by_the_database_is_left_to_a_settle_task(
    bench: Bench, things: Things
) -> None:
    is_broken = [True]

    def on_end(session: Session, task: EndedTask, outcome: str) -> None:
        if is_broken[0]:
            session.execute(sa.insert(table).values(id=3, state="twice", ends=0))

    bench.context.kinds.register(
        Kind(name="mail.send", payload=Touch, locks=things.lock, on_end=on_end)
    )
    task_id = bench.put("mail.send", Touch(thing_id=things.add(3)))
    cancel(bench.context, bench.enqueuer, task_id, by="ann")
    assert bench.columns(task_id)["state"] == "cancelled"
    assert len(_settles(bench)) == 1


def test_locks_that_raise_leave_the_hook_to_a_settle_task(bench: Bench, things: Things) -> None:
    def locks(session: Session, payload: Touch) -> None:
        raise LookupError("a mistake")

    bench.context.kinds.register(
        Kind(name="mail.send", payload=Touch, locks=locks, on_end=things.on_end)
    )
    task_id = bench.put("mail.send", Touch(thing_id=things.add(3)))
    cancel(bench.context, bench.enqueuer, task_id, by="ann")
    assert bench.columns(task_id)["state"] == "cancelled"
    assert things.ended == []
    assert len(_settles(bench)) == 1


def test_settle_tasks_have_no_settle_tasks_and_are_not_superseded(
    bench: Bench, other: Bench, things: Things
) -> None:
    bench.context.kinds.register(things.kind())
    task_id = bench.put("mail.send", Touch(thing_id=things.add(3)))
    cancel(other.context, other.enqueuer, task_id, by="ann")
    (settle_id,) = _settles(bench)
    with Session(other.engine) as session, session.begin():
        done = supersede(other.context, other.enqueuer, session, [task_id, settle_id])
    assert done.cancelled == done.cancelling == ()
    cancel(other.context, other.enqueuer, settle_id, by="ann")
    assert bench.columns(settle_id)["state"] == "cancelled"
    assert _settles(bench) == [settle_id]
    # Any process may run one again: their kinds need no registration.
    assert retry(other.context, settle_id, by="ann") == "pending"


def test_rolled_back_end_tells_nobody(bench: Bench, things: Things) -> None:
    bench.context.kinds.register(things.kind())
    task_id = bench.put("mail.send", Touch(thing_id=things.add(3)))
    end = End(state=State.CANCELLED, code="cancelled")
    with Session(bench.engine) as session:
        held = take(bench.context, session, task_id)
        assert held is not None
        bench.ends.end_locked(session, held, end)
        session.rollback()
    assert bench.columns(task_id)["state"] == "pending"
    assert bench.signals == []
    with Session(bench.engine) as session, session.begin():
        held = take(bench.context, session, task_id)
        assert held is not None
        savepoint = session.begin_nested()
        bench.ends.end_locked(session, hold(bench.context, held.row), end)
        savepoint.rollback()
    assert bench.columns(task_id)["state"] == "pending"
    assert bench.signals == []


@pytest.mark.databases("mariadb")
def test_deadlock_in_a_hook_is_tried_again(bench: Bench, things: Things) -> None:
    """The hook breaks the lock order on purpose: who holds thing 4 wants thing 3."""
    things.add(3)
    things.add(4)
    holds_four = threading.Event()
    tries: list[int] = []

    def on_end(session: Session, task: EndedTask, outcome: str) -> None:
        tries.append(1)
        if len(tries) == 1:
            assert holds_four.wait(20)
        session.execute(sa.update(table).where(table.c.id == 4).values(state="by the hook"))

    bench.context.kinds.register(
        Kind(name="mail.send", payload=Touch, locks=things.lock, on_end=on_end)
    )
    task_id = bench.put("mail.send", Touch(thing_id=3))

    def cross() -> None:
        with bench.engine.begin() as connection:
            # The heavier transaction survives a deadlock: the hook's is the victim.
            for number in range(100, 160):
                connection.execute(sa.insert(table).values(id=number, state="x", ends=0))
            connection.execute(sa.update(table).where(table.c.id == 4).values(state="crossed"))
            holds_four.set()
            connection.execute(sa.update(table).where(table.c.id == 3).values(state="crossed"))

    before = _deadlocks(bench)
    ending = Thread(lambda: cancel(bench.context, bench.enqueuer, task_id, by="ann"))
    crossing = Thread(cross)
    crossing.join_answer()
    assert ending.join_answer().state == "cancelled"
    assert _deadlocks(bench) == before + 1
    assert len(tries) == 2
    assert things.state(4) == "by the hook"
    assert _settles(bench) == []


def _deadlocks(bench: Bench) -> int:
    with bench.engine.connect() as connection:
        found = connection.exec_driver_sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").one()
    return int(found[1])
