"""A task is written in the caller's transaction, and nothing leaves for Redis before its commit."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator

import pydantic
import pytest
import redis
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.core.errors import InvalidError
from shared.outbox import Kind, OutboxSettings
from shared.outbox.outbox import Outbox
from shared.outbox.schema import tasks
from tests.support.effects import AllCredits
from tests.support.eventually import eventually, never


class Note(pydantic.BaseModel, extra="forbid"):
    text: str


NOTE = Kind(name="notes.write", payload=Note)


@pytest.fixture
def outbox(outbox_url: str, redis_url: str, namespace: str) -> Iterator[Outbox]:
    made = Outbox(sa.create_engine(outbox_url), redis_url, namespace=namespace)
    made.register(NOTE)
    yield made
    made.close()
    made.engine.dispose()


@pytest.fixture
def crediting(outbox: Outbox) -> Outbox:
    outbox._enqueuer._births.credits = AllCredits()
    outbox.start_producer()
    return outbox


def row(outbox: Outbox, task_id: int) -> sa.Row[tuple[object, ...]]:
    with Session(outbox.engine) as session:
        return session.execute(sa.select(tasks).where(tasks.c.id == task_id)).one()


def length(outbox: Outbox, queue: str = "notes") -> int:
    client: redis.Redis = outbox.context.redis
    return int(client.llen(outbox.context.scripts.list_key(queue)))


def test_a_task_with_a_credit_reaches_redis_after_the_commit_only(crediting: Outbox) -> None:
    with Session(crediting.engine) as session, session.begin():
        enqueued = crediting.enqueue(session, NOTE, Note(text="hello"))
        never(lambda: length(crediting), during=0.2)
    eventually(lambda: length(crediting) == 1)
    found = eventually(lambda: (r := row(crediting, enqueued.id)).state == "dispatched" and r)
    assert found.payload == {"v": 1, "p": {"text": "hello"}}
    bodies = crediting.context.scripts.fetch("notes", 10)
    assert found.dispatch_id.encode() in bodies[0]


def test_a_rollback_leaves_no_row_and_no_message(crediting: Outbox) -> None:
    with Session(crediting.engine) as session:
        enqueued = crediting.enqueue(session, NOTE, Note(text="hello"))
        session.rollback()
        # The next commit of the same session must not push what was rolled back.
        session.execute(sa.text("SELECT 1"))
        session.commit()
    never(lambda: length(crediting), during=0.2)
    with Session(crediting.engine) as session:
        assert session.get_bind() is crediting.engine
        assert session.scalar(sa.select(tasks.c.id).where(tasks.c.id == enqueued.id)) is None


def test_a_savepoint_that_is_rolled_back_takes_its_task_with_it(crediting: Outbox) -> None:
    with Session(crediting.engine) as session, session.begin():
        kept = crediting.enqueue(session, NOTE, Note(text="kept"))
        savepoint = session.begin_nested()
        lost = crediting.enqueue(session, NOTE, Note(text="lost"))
        savepoint.rollback()
        with session.begin_nested():
            inner = crediting.enqueue(session, NOTE, Note(text="inner"))
        never(lambda: length(crediting), during=0.1, message="a savepoint's commit is no commit")
    eventually(lambda: row(crediting, kept.id).state == "dispatched")
    eventually(lambda: row(crediting, inner.id).state == "dispatched")
    with Session(crediting.engine) as session:
        states = session.scalars(sa.select(tasks.c.payload).where(tasks.c.id == lost.id)).all()
    assert {"v": 1, "p": {"text": "lost"}} not in states


def test_without_a_credit_the_row_waits_for_the_filler(outbox: Outbox) -> None:
    with Session(outbox.engine) as session, session.begin():
        enqueued = outbox.enqueue(session, NOTE, Note(text="x"), tenant_id="acme", priority=2)
    found = row(outbox, enqueued.id)
    assert (found.state, found.dispatch_id, found.lease_until) == ("pending", None, None)

    def lanes() -> list[tuple[object, ...]]:
        with Session(outbox.engine) as session:
            found = session.execute(sa.text("SELECT tenant_id, priority FROM lanes")).all()
            return [tuple(one) for one in found]

    assert eventually(lanes) == [("acme", 2)]
    bell = outbox.context.scripts.fill_bell_key
    assert eventually(lambda: outbox.context.redis.llen(bell)) == 1


def test_a_delayed_task_is_scheduled_on_the_databases_clock(outbox: Outbox) -> None:
    with Session(outbox.engine) as session, session.begin():
        by_delay = outbox.enqueue(session, NOTE, Note(text="x"), delay_seconds=60)
        moment = dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC)
        by_date = outbox.enqueue(session, NOTE, Note(text="x"), due_at=moment)
        past = outbox.enqueue(
            session, NOTE, Note(text="x"), due_at=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
        )
    first = row(outbox, by_delay.id)
    assert first.state == "scheduled"
    off = first.due_at - first.created_at - dt.timedelta(seconds=60)
    assert abs(off) < dt.timedelta(seconds=1), "SQLite reads its clock for each column"
    assert row(outbox, by_date.id).due_at == dt.datetime(2030, 1, 1, 12)
    late = row(outbox, past.id)
    assert late.state == "pending"
    assert late.due_at > dt.datetime(2025, 1, 1), "a past moment counts as now"


def test_a_dedupe_key_names_the_active_task_until_it_ends(outbox: Outbox) -> None:
    def enqueue() -> tuple[int, bool]:
        with Session(outbox.engine) as session, session.begin():
            answer = outbox.enqueue(session, NOTE, Note(text="x"), dedupe_key="k")
            return answer.id, answer.created

    first, second = enqueue(), enqueue()
    assert second == (first[0], False)
    with outbox.engine.begin() as connection:
        connection.execute(sa.update(tasks).values(state="completed"))
    third = enqueue()
    assert third[1]
    assert third[0] != first[0]


def test_an_idempotency_key_answers_with_the_first_task_even_when_it_has_ended(
    outbox: Outbox,
) -> None:
    with Session(outbox.engine) as session, session.begin():
        first = outbox.enqueue(session, NOTE, Note(text="x"), tenant_id="a", idempotency_key="i")
        other = outbox.enqueue(session, NOTE, Note(text="x"), tenant_id="b", idempotency_key="i")
    with outbox.engine.begin() as connection:
        connection.execute(sa.update(tasks).values(state="completed"))
    with Session(outbox.engine) as session, session.begin():
        again = outbox.enqueue(session, NOTE, Note(text="x"), tenant_id="a", idempotency_key="i")
    assert (again.id, again.created) == (first.id, False)
    assert other.created


def test_two_callers_with_one_key_get_one_task(outbox: Outbox) -> None:
    barrier = threading.Barrier(8)
    answers: list[tuple[int, bool]] = []

    def call() -> None:
        barrier.wait(10)

        def work(session: Session) -> tuple[int, bool]:
            answer = outbox.enqueue(session, NOTE, Note(text="x"), dedupe_key="one")
            return answer.id, answer.created

        answers.append(outbox.context.db.run_session(work))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({task_id for task_id, _ in answers}) == 1
    assert sorted(created for _, created in answers) == [False] * 7 + [True]


@pytest.mark.parametrize("count", [1, 499, 500, 1203])
def test_many_tasks_in_one_call_get_their_own_ids_in_order(outbox: Outbox, count: int) -> None:
    with Session(outbox.engine) as session, session.begin():
        answers = outbox.enqueue_many(session, NOTE, [Note(text=str(n)) for n in range(count)])
    with Session(outbox.engine) as session:
        found = session.execute(sa.select(tasks.c.id, tasks.c.payload).order_by(tasks.c.id)).all()
    assert [answer.id for answer in answers] == [one.id for one in found]
    assert [one.payload["p"]["text"] for one in found] == [str(n) for n in range(count)]


@pytest.mark.parametrize(
    ("payload", "options"),
    [
        ({"text": 5.5}, {}),
        ({"text": "x", "more": 1}, {}),
        ({}, {}),
        ({"text": "x" * 70_000}, {}),
        ({"text": "x"}, {"priority": 4}),
        ({"text": "x"}, {"delay_seconds": -1}),
        ({"text": "x"}, {"dedupe_key": ""}),
        ({"text": "x"}, {"idempotency_key": "k" * 192}),
        ({"text": "x"}, {"tenant_id": "bücher"}),
        ({"text": "x"}, {"delay_seconds": 1, "due_at": dt.datetime(2030, 1, 1)}),
    ],
)
def test_what_does_not_fit_is_refused_and_writes_nothing(
    outbox: Outbox, payload: dict[str, object], options: dict[str, object]
) -> None:
    with Session(outbox.engine) as session, session.begin():
        with pytest.raises(InvalidError):
            outbox.enqueue(session, NOTE, payload, **options)
        assert session.scalar(sa.select(sa.func.count()).select_from(tasks)) == 0


def test_an_unknown_kind_is_refused(outbox: Outbox) -> None:
    with Session(outbox.engine) as session, pytest.raises(InvalidError, match="no kind named"):
        outbox.enqueue(session, "notes.burn", {})


def test_something_else_than_a_session_is_refused(outbox: Outbox) -> None:
    with outbox.engine.begin() as connection, pytest.raises(TypeError, match="Session"):
        outbox.enqueue(connection, NOTE, Note(text="x"))  # type: ignore[arg-type]


def test_a_redis_that_is_away_never_fails_the_caller(outbox_url: str, namespace: str) -> None:
    outbox = Outbox(
        sa.create_engine(outbox_url),
        "redis://127.0.0.1:1/0",
        namespace=namespace,
        settings=OutboxSettings(redis_timeout_seconds=0.2),
    )
    outbox.register(NOTE)
    outbox._enqueuer._births.credits = AllCredits()
    try:
        with Session(outbox.engine) as session, session.begin():
            enqueued = outbox.enqueue(session, NOTE, Note(text="x"))
        assert row(outbox, enqueued.id).state == "dispatching", "kept for a later push or the scan"
    finally:
        outbox.close(1)
        outbox.engine.dispose()
