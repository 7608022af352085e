"""Counting what the whole system holds, on both databases."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from shared.core.clock import utc_now
from shared.outbox.db import Database
from shared.outbox.schema import tasks
from shared.runtime.database import build_engine
from shared.runtime.settings import Settings
from shared.runtime.statistics import count_tasks


@pytest.fixture
def engine(outbox_url: str) -> Iterator[sa.Engine]:
    engine = build_engine(Settings(database_url=outbox_url), threads=2)
    yield engine
    engine.dispose()


def add(
    engine: sa.Engine,
    queue: str,
    state: str,
    *,
    region: str = "",
    count: int = 1,
    attempt: int = 0,
    due_seconds_ago: float = 0.0,
) -> None:
    due = utc_now() - dt.timedelta(seconds=due_seconds_ago)
    row = {
        "queue": queue, "region": region, "kind": f"{queue}.x", "state": state,
        "attempt": attempt, "due_at": due, "order_at": due, "created_at": due,
        "payload": {"v": 1, "p": {}},
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(sa.insert(tasks), [row] * count)


def test_an_empty_table_has_no_queues(engine: sa.Engine) -> None:
    assert count_tasks(Database(engine)) == []


def test_open_tasks_and_dead_letters_are_counted_by_queue_and_region(engine: sa.Engine) -> None:
    add(engine, "upload", "pending", count=3, due_seconds_ago=60.0)
    add(engine, "upload", "running", region="eu")
    add(engine, "upload", "completed", count=5)
    add(engine, "review", "scheduled", count=2)
    add(engine, "review", "scheduled", attempt=1)
    add(engine, "review", "failed", count=4)
    found = {(counts.queue, counts.region): counts for counts in count_tasks(Database(engine))}

    assert set(found) == {("upload", ""), ("upload", "eu"), ("review", "")}
    upload = found["upload", ""]
    assert upload.by_state["pending"] == 3
    assert "completed" not in upload.by_state
    assert (upload.open, upload.retrying) == (3, 0)
    assert 55.0 < upload.oldest_pending_seconds < 120.0
    assert found["upload", "eu"].by_state["running"] == 1
    review = found["review", ""]
    assert (review.by_state["scheduled"], review.by_state["failed"]) == (3, 4)
    assert (review.open, review.retrying, review.oldest_pending_seconds) == (3, 1, 0.0)


@pytest.mark.databases("mariadb")
def test_counting_reads_no_row_of_a_task_that_ended(engine: sa.Engine) -> None:
    add(engine, "upload", "completed", count=900)
    add(engine, "upload", "pending", count=10)
    with engine.connect() as connection:
        connection.execute(sa.text("ANALYZE TABLE tasks"))
        before = _rows_read(connection)
    count_tasks(Database(engine))
    with engine.connect() as connection:
        assert _rows_read(connection) - before < 200


def _rows_read(connection: sa.Connection) -> int:
    rows = connection.execute(sa.text("SHOW GLOBAL STATUS LIKE 'Handler_read_%next'")).all()
    assert {row[0] for row in rows} >= {"Handler_read_next", "Handler_read_rnd_next"}
    return sum(int(row[1]) for row in rows)
