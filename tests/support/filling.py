"""What tests of filler and scans share: a consumer that is only a row, tasks in a hurry."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from shared.outbox.kinds import Kind
from shared.outbox.lanes import LaneKey
from shared.outbox.nodes import NodeWriter
from shared.outbox.schema import lanes, tasks
from tests.support.outbox import Bench, Touch

#: A kind without hooks; its queue is "mail".
PLAIN = Kind(name="mail.plain", payload=Touch)
#: A kind that records every transition.
TELLING = Kind(name="mail.telling", payload=Touch, events=True)
QUEUE = "mail"


def consume(
    bench: Bench, *, threads: int = 4, mean_seconds: float = 1.0, queues: Sequence[str] = (QUEUE,)
) -> NodeWriter:
    """Pretend a live worker: with a mean of a second its window holds four tasks per thread."""
    writer = NodeWriter(bench.context)
    writer.write(
        role="worker",
        queues=queues,
        threads=threads,
        mean_seconds=dict.fromkeys(queues, mean_seconds),
    )
    return writer


def clock(bench: Bench) -> dt.datetime:
    """Return the database's clock."""
    dialect = bench.context.db.dialect

    def read(cursor: Any) -> Any:
        cursor.execute("SELECT " + dialect.tokens["now"])
        return dialect.to_time(cursor.fetchone()[0])

    now = bench.context.db.run(read, read_only=True)
    assert isinstance(now, dt.datetime)
    return now


def add(bench: Bench, count: int = 1, **values: Any) -> list[int]:
    """Insert rows of the queue "mail" in one transaction, pending unless told; returns their ids.

    `age_seconds` puts `order_at` and `due_at` so far back (the later ones a microsecond after).
    """
    now = clock(bench)
    past = now - dt.timedelta(seconds=values.pop("age_seconds", 0.0))
    ids: list[int] = []
    with bench.engine.begin() as connection:
        for number in range(count):
            moment = past + dt.timedelta(microseconds=number)
            row = {
                "queue": QUEUE,
                "kind": PLAIN.name,
                "state": "pending",
                "payload": {"v": 1, "p": {}},
                "due_at": moment,
                "order_at": moment,
                "created_at": past,
                **values,
            }
            answer = connection.execute(sa.insert(tasks).values(**row))
            key = answer.inserted_primary_key
            assert key is not None
            ids.append(int(key[0]))
    return ids


def states(bench: Bench, ids: Sequence[int] | None = None) -> dict[str, int]:
    """Return how many rows are in which state."""
    statement = sa.select(tasks.c.state, sa.func.count()).group_by(tasks.c.state)
    if ids is not None:
        statement = statement.where(tasks.c.id.in_(ids))
    with bench.engine.connect().execution_options(read_only=True) as connection:
        return {str(state): int(count) for state, count in connection.execute(statement)}


def in_state(bench: Bench, state: str) -> list[int]:
    """Return the ids of the rows in a state."""
    statement = sa.select(tasks.c.id).where(tasks.c.state == state).order_by(tasks.c.id)
    with bench.engine.connect().execution_options(read_only=True) as connection:
        return [int(row[0]) for row in connection.execute(statement)]


def read_lanes(bench: Bench) -> dict[LaneKey, Any]:
    """Return the lane rows by key."""
    with bench.engine.connect().execution_options(read_only=True) as connection:
        return {
            LaneKey(row["queue"], row["region"], row["tenant_id"], row["priority"]): row
            for row in connection.execute(sa.select(lanes)).mappings()
        }


def update_lanes(bench: Bench, **values: Any) -> None:
    """Overwrite columns of all lane rows."""
    with bench.engine.begin() as connection:
        connection.execute(sa.update(lanes).values(**values))


def listed(bench: Bench, name: str = QUEUE) -> list[str]:
    """Return the dispatch ids in a queue's list."""
    key = bench.context.scripts.list_key(name)
    found: Any = bench.context.redis.lrange(key, 0, -1)
    return [item.decode() for item in found]
