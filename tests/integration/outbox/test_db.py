"""Which errors of a database mean that it is away, and which that a statement was wrong."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from shared.core.errors import UnavailableError
from shared.outbox.db import Database


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
