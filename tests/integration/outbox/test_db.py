"""Which errors of a database mean that it is away, and which that a statement was wrong."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from shared.core.errors import UnavailableError
from shared.outbox.db import Database
from tests.support.filling import add
from tests.support.outbox import Bench


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
