"""Which errors of a database mean that it is away, and which that a statement was wrong."""

from __future__ import annotations

import datetime as dt
import socket
import time

import pytest
import sqlalchemy as sa

from shared.core.errors import UnavailableError
from shared.outbox import dialect
from shared.outbox.db import Database
from shared.outbox.schema import nodes
from tests.support.filling import add
from tests.support.outbox import Bench, Thread

_NODE = {
    "node": "n",
    "role": "worker",
    "queues": [],
    "started_at": dt.datetime(2026, 1, 1),
    "last_seen": dt.datetime(2026, 1, 1),
}


@pytest.mark.databases("mariadb")
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT id FROM tasks WHERE queue = 'bücher'",  # an ASCII column and other letters: 1267
        "SELECT nothing_like_it FROM tasks",
    ],
)
def test_a_refused_statement_is_not_taken_for_an_outage(outbox_url: str, statement: str) -> None:
    engine = sa.create_engine(outbox_url)
    db = Database(engine)
    with pytest.raises(db.errors):
        db.run(lambda cursor: cursor.execute(statement))
    with pytest.raises(sa.exc.OperationalError):
        db.run_session(lambda session: session.execute(sa.text(statement)))
    engine.dispose()


@pytest.mark.databases("mariadb")
def test_a_statement_past_its_limit_is_an_outage(outbox_url: str) -> None:
    engine = sa.create_engine(outbox_url)
    db = Database(engine)

    def slow(cursor: object) -> None:
        cursor.execute("SET SESSION max_statement_time = 0.2")  # type: ignore[attr-defined]
        cursor.execute("SELECT SLEEP(5)")  # type: ignore[attr-defined]

    with pytest.raises(UnavailableError):
        db.run(slow)
    engine.dispose()


@pytest.mark.databases("mariadb")
def test_a_server_that_is_not_there_is_an_outage() -> None:
    engine = sa.create_engine("mysql+pymysql://nobody@127.0.0.1:1/none")
    db = Database(engine)
    with pytest.raises(UnavailableError):
        db.run(lambda cursor: cursor.execute("SELECT 1"))
    with pytest.raises(UnavailableError):
        db.run_session(lambda session: session.execute(sa.text("SELECT 1")))


def test_a_refused_statement_lets_go_of_its_locks_while_its_error_is_handled(bench: Bench) -> None:
    (task_id,) = add(bench)
    text = bench.context.db.dialect.sql("UPDATE tasks SET progress = {p} WHERE id = {p}")
    line = bench.context.db.line()
    began = time.monotonic()
    try:
        with line.transaction() as cursor:
            cursor.execute(text, (1, task_id))
            cursor.execute(text, (None, task_id))
    except bench.context.db.errors:
        # The error, and with it the cursor, lives as long as this block.
        with line.transaction() as cursor:
            cursor.execute(text, (2, task_id))
    assert time.monotonic() - began < 4
    assert bench.columns(task_id)["progress"] == 2
    line.close()


@pytest.mark.databases("mariadb")
def test_an_engine_with_autocommit_has_transactions_all_the_same(outbox_url: str) -> None:
    engine = sa.create_engine(outbox_url, isolation_level="AUTOCOMMIT")
    db = Database(engine)
    with sa.orm.Session(engine) as session:
        session.execute(sa.insert(nodes).values(**_NODE))
        session.rollback()
    with engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(nodes)) == 0
    with db.transaction(read_only=True) as cursor:
        cursor.execute("SELECT @@autocommit")
        assert cursor.fetchone() == (0,)
    engine.dispose()


@pytest.mark.databases("mariadb")
def test_a_connection_used_with_another_isolation_comes_back_as_it_was(outbox_url: str) -> None:
    engine = sa.create_engine(outbox_url, pool_size=1, max_overflow=0)
    db = Database(engine)
    for level in ("SERIALIZABLE", "AUTOCOMMIT"):
        with engine.connect().execution_options(isolation_level=level) as connection:
            connection.exec_driver_sql("SELECT 1")
        with db.transaction(read_only=True) as cursor:
            cursor.execute("SELECT @@tx_isolation, @@autocommit")
            assert cursor.fetchone() == ("READ-COMMITTED", 0)
    engine.dispose()


def test_a_server_that_never_answers_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection, as a network does that loses everything afterwards."""
    monkeypatch.setattr(dialect, "ANSWER_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        engine = sa.create_engine(f"mysql+pymysql://nobody@127.0.0.1:{port}/none")
        asked = Thread(lambda: Database(engine).run(lambda cursor: cursor.execute("SELECT 1")))
        with pytest.raises(UnavailableError):
            asked.join_answer(15)
    engine.dispose()
