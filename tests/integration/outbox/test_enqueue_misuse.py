"""Odd callers of `enqueue`: other databases, forks, late commits, huge batches, strange options."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.core.clock import monotonic
from shared.core.errors import InvalidError
from shared.outbox import Kind, backlog, births, enqueue
from shared.outbox.credits import credits_key
from shared.outbox.dialect import prepare
from shared.outbox.filler import Filler
from shared.outbox.lanes import LaneKey
from shared.outbox.outbox import Outbox
from shared.outbox.schema import metadata, nodes, tasks
from tests.servers.mariadb import MariaDB
from tests.support.eventually import eventually
from tests.support.filling import add, clock, consume, in_state, read_lanes
from tests.support.outbox import Bench, NoCredits, Touch
from tests.support.tcp_proxy import proxy_to


class Note(pydantic.BaseModel):
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
def other_engine(tmp_path: Path) -> Iterator[sa.Engine]:
    """Another outbox's database."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    prepare(engine)
    metadata.create_all(engine)
    yield engine
    engine.dispose()


def texts(engine: sa.Engine) -> list[str]:
    with Session(engine) as session:
        return [
            payload["p"]["text"]
            for payload in session.scalars(sa.select(tasks.c.payload).order_by(tasks.c.id))
        ]


# -- sessions --------------------------------------------------------------------------------


def test_a_session_of_another_database_is_refused(outbox: Outbox, other_engine: sa.Engine) -> None:
    with Session(other_engine) as session:
        with pytest.raises(InvalidError, match="not to this outbox's"):
            outbox.enqueue(session, NOTE, Note(text="lost"))
        session.commit()
    assert texts(other_engine) == texts(outbox.engine) == []


def test_a_session_of_many_binds_writes_where_its_tasks_are_bound(
    outbox: Outbox, other_engine: sa.Engine
) -> None:
    other = sa.Table("things", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    for session in (
        Session(binds={tasks: outbox.engine, other: other_engine}),
        Session(other_engine, binds={tasks: outbox.engine}),
    ):
        with session, session.begin():
            outbox.enqueue(session, NOTE, Note(text="here"))
    assert texts(outbox.engine) == ["here"] * 2
    assert texts(other_engine) == []
    wrong = pytest.raises(InvalidError, match="no bind for tasks")
    with Session(binds={other: other_engine}) as session, wrong:
        outbox.enqueue(session, NOTE, Note(text="nowhere"))


def test_another_engine_of_the_same_database_will_do(outbox: Outbox, outbox_url: str) -> None:
    engine = sa.create_engine(outbox_url)
    if engine.dialect.name == "sqlite":
        with Session(engine) as session, pytest.raises(InvalidError, match="prepare"):
            outbox.enqueue(session, NOTE, Note(text="no clock"))
    prepare(engine)
    for bind in (engine, outbox.engine.execution_options(yield_per=10)):
        with Session(bind) as session, session.begin():
            outbox.enqueue(session, NOTE, Note(text="here"))
    assert texts(outbox.engine) == ["here"] * 2
    engine.dispose()


@pytest.mark.databases("mariadb")
def test_a_connection_that_is_lost_is_sqlalchemys_error_and_no_other(
    outbox_url: str, mariadb: MariaDB, redis_url: str, namespace: str
) -> None:
    with proxy_to(mariadb.port) as proxy:
        url = outbox_url.replace(f":{mariadb.port}/", f":{proxy.port}/")
        bench = Bench(url, redis_url, namespace=namespace, kinds=[NOTE])
        for cut in ("before", "after"):
            proxy.arm(b"INSERT INTO tasks", cut)  # type: ignore[arg-type]
            with pytest.raises(sa.exc.OperationalError) as caught:
                bench.put(NOTE, Note(text="never"))
            assert caught.value.connection_invalidated
            assert bench.context.db.is_outage(caught.value)
        bench.put(NOTE, Note(text="here"))
        assert texts(bench.engine) == ["here"]
        bench.close()


def test_a_refused_statement_is_sqlalchemys_error_too(bench: Bench) -> None:
    bench.context.kinds.register(NOTE)
    metadata.tables["tasks"].drop(bench.engine)
    with pytest.raises(sa.exc.DBAPIError) as caught:
        bench.put(NOTE, Note(text="secret"))
    assert not caught.value.connection_invalidated
    assert "secret" not in str(caught.value)


# -- forks -----------------------------------------------------------------------------------


def test_an_outbox_made_before_a_fork_is_another_in_each_child(outbox: Outbox) -> None:
    outbox.engine.dispose()
    seen: list[tuple[str, str]] = []
    for _ in range(2):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                outbox.start_producer()
                answer = f"{outbox._enqueuer._births.dispatch_id()} {outbox.context.node}"
                os.write(writer, answer.encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            dispatch_id, node = pipe.read().split()
        seen.append((dispatch_id, node))
    assert len({dispatch_id for dispatch_id, _ in seen}) == 2
    assert len({node for _, node in seen} | {outbox.context.node}) == 3


def test_a_child_that_ends_lets_the_outbox_of_its_parent_be(outbox: Outbox) -> None:
    with Session(outbox.engine) as session, session.begin():
        outbox.enqueue(session, NOTE, Note(text="x"))
    assert outbox.health().is_live
    pid = os.fork()
    if pid == 0:
        # As the interpreter does at its exit.
        os._exit(0 if outbox.close(2.0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert outbox.health().is_live
    with Session(outbox.engine) as session, session.begin():
        outbox.enqueue(session, NOTE, Note(text="y"))
    assert texts(outbox.engine) == ["x", "y"]


def test_closing_does_not_wait_for_a_database_that_does_not_answer(outbox: Outbox) -> None:
    outbox.start_producer()
    query = sa.select(sa.func.count()).select_from(nodes)
    with Session(outbox.engine.execution_options(read_only=True)) as session:
        eventually(lambda: session.scalar(query) or session.rollback())
    with outbox.engine.begin() as connection:
        connection.execute(sa.update(nodes).values(version="locked"))
        began = monotonic()
        assert not outbox.close(1.0)
        assert monotonic() - began < 4
    assert outbox.close(1.0)


@pytest.mark.parametrize("node", ["", "n" * 64, "bücher"])
def test_a_node_name_that_no_owner_could_hold_is_refused(tmp_path: Path, node: str) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'tasks.db'}")
    with pytest.raises(ValueError, match="node"):
        Outbox(engine, "redis://127.0.0.1:1/0", node=node)


# -- clocks ----------------------------------------------------------------------------------


def test_a_moment_that_has_passed_counts_as_the_databases_now(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process's clock is an hour behind: its "now" lies below every bound of the scans."""
    bench.context.kinds.register(NOTE)
    now = clock(bench)
    behind = now - dt.timedelta(hours=1)
    monkeypatch.setattr(births, "utc_now", lambda: behind)
    for due_at in (behind, behind + dt.timedelta(minutes=1)):
        row = bench.columns(bench.put(NOTE, Note(text="x"), due_at=due_at))
        assert row["due_at"] >= now
        assert row["order_at"] >= now
    later = now + dt.timedelta(hours=1)
    assert bench.columns(bench.put(NOTE, Note(text="x"), due_at=later))["due_at"] == later


def test_credits_lapse_in_time_when_the_clock_of_redis_was_set_back(outbox: Outbox) -> None:
    wallet, context = outbox._wallet, outbox.context
    seconds, _ = context.redis.time()
    far = (seconds + 3600) * 1000
    context.redis.hset(credits_key(context.namespace, context.node), "notes", f"5:{far}")
    wallet.refresh()
    assert wallet.take("notes", "")
    wallet._held["notes"][1] -= context.settings.credit_lapse_seconds
    assert not wallet.take("notes", "")


@pytest.mark.databases("mariadb")
def test_a_transaction_that_commits_late_is_not_overlooked_in_a_busy_queue(
    outbox_url: str, redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filler has read past its rows; without a word they wait for the look without bounds."""
    monkeypatch.setattr(backlog, "TRAIL", dt.timedelta(seconds=0.2))
    monkeypatch.setattr(backlog, "LOOK_BACK_SECONDS", 0.1)
    monkeypatch.setattr(enqueue, "LATE_SECONDS", 0.2)
    outbox = Outbox(sa.create_engine(outbox_url), redis_url, namespace=namespace)
    outbox.register(NOTE)
    outbox._enqueuer._births.credits = NoCredits()
    bench = Bench(outbox_url, redis_url, namespace=namespace, full_scan_seconds=3600.0)
    consume(bench, threads=1, queues=["notes"])
    filler = Filler(bench.context)
    notes = {"queue": "notes", "kind": NOTE.name}

    def work() -> None:
        for task_id in in_state(bench, "dispatched"):
            bench.set(task_id, state="completed")
        filler.run_once()

    try:
        outbox.start_producer()
        add(bench, tenant_id="late", **notes)
        assert eventually(filler.run_once) == 1
        add(bench, 60, tenant_id="busy", **notes)
        with Session(outbox.engine) as session, session.begin():
            late = outbox.enqueue(session, NOTE, Note(text="late"), tenant_id="late")
            end = clock(bench) + dt.timedelta(seconds=1)
            eventually(lambda: filler.run_once() == 0 and clock(bench) > end)
        before = read_lanes(bench)[LaneKey("notes", "", "late", 1)]["version"]
        eventually(lambda: read_lanes(bench)[LaneKey("notes", "", "late", 1)]["version"] > before)
        for _ in range(8):
            work()
        assert bench.read(late.id).state in ("dispatched", "completed")
        assert len(in_state(bench, "pending")) > 10, "the busy ones are still waiting"
    finally:
        filler.close()
        bench.close()
        outbox.close()
        outbox.engine.dispose()


# -- options and sizes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"dedupe_key": "a "},
        {"idempotency_key": "a "},
        {"dedupe_key": "\ud800"},
        {"tenant_id": "acme "},
        {"region": 'eu"west'},
        {"region": "msgs"},
        {"region": "eu.west"},
        {"region": "ü"},
        {"region": "x" * 33},
        {"delay_seconds": float("nan")},
        {"delay_seconds": float("inf")},
        {"delay_seconds": 1e13},
        {"max_attempts": 0},
        {"max_attempts": -5},
        {"max_attempts": 10**12},
        {"parent_id": 2**70},
        {"parent_id": -1},
    ],
    ids=str,
)
def test_an_option_that_could_not_be_kept_is_refused(bench: Bench, options: dict[str, Any]) -> None:
    bench.context.kinds.register(NOTE)
    with pytest.raises(InvalidError):
        bench.put(NOTE, Note(text="x"), **options)


@pytest.mark.parametrize("key", ["dedupe_key", "idempotency_key"])
def test_keys_that_differ_in_anything_are_different(bench: Bench, key: str) -> None:
    bench.context.kinds.register(NOTE)
    keys = ["a", "A", " a", "ä", "a\u0308", "á", "a\t", "a\x00", "ａ", "😀", "😁", "ß", "ss"]
    ids = [bench.put(NOTE, Note(text="x"), **{key: value}) for value in keys]
    assert len(set(ids)) == len(keys)
    assert [bench.put(NOTE, Note(text="x"), **{key: value}) for value in keys] == ids


@pytest.mark.parametrize("trace", ["x" * 65, "ü"])
def test_a_trace_that_does_not_fit_costs_no_task(bench: Bench, trace: str) -> None:
    bench.context.kinds.register(NOTE)
    assert (
        bench.columns(bench.put(NOTE, Note(text="x"), trace_parent=trace))["trace_parent"] is None
    )


def test_a_batch_larger_than_any_packet_goes_in_parts(bench: Bench) -> None:
    """MariaDB takes 16 MiB at a time; quotes are escaped on their way."""
    bench.context.kinds.register(NOTE)
    payloads = [Note(text=("'" if number % 2 else "x") * 60_000) for number in range(600)]
    with Session(bench.engine) as session, session.begin():
        answers = bench.enqueuer.enqueue_many(session, NOTE, payloads)
    assert [answer.id for answer in answers] == sorted({answer.id for answer in answers})
    assert bench.columns(answers[-1].id)["payload"]["p"]["text"] == "'" * 60_000
    assert bench.put(Kind(name="mail.x", payload=Touch)) == answers[-1].id + 1
