"""Every transition of a kind that asks for it is recorded, also the rare ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pydantic
import pytest
import redis
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.core.clock import utc_now
from shared.outbox import Kind
from shared.outbox.claim import Claimer
from shared.outbox.invariants import task_breaches
from shared.outbox.messages import decode, encode
from shared.outbox.outbox import Outbox
from shared.outbox.schema import task_events, tasks
from tests.support.effects import AllCredits
from tests.support.eventually import eventually


class Nothing(pydantic.BaseModel):
    """No payload."""


WATCHED = Kind(name="watched.do", payload=Nothing, events=True)


@pytest.fixture
def outbox(outbox_url: str, redis_url: str, namespace: str) -> Iterator[Outbox]:
    made = Outbox(sa.create_engine(outbox_url), redis_url, namespace=namespace)
    made.register(WATCHED)
    made._enqueuer._births.credits = AllCredits()
    yield made
    made.close()
    made.engine.dispose()


def moves(outbox: Outbox, task_id: int) -> list[tuple[object, object]]:
    with Session(outbox.engine) as session:
        query = sa.select(task_events.c.data).where(task_events.c.task_id == task_id)
        found = session.scalars(query.order_by(task_events.c.id)).all()
        return [(data["from"], data["to"]) for data in found]


def dispatched(outbox: Outbox) -> tuple[int, str]:
    with Session(outbox.engine) as session, session.begin():
        task_id = outbox.enqueue(session, WATCHED, Nothing()).id

    def state() -> str | None:
        with Session(outbox.engine) as session:
            query = sa.select(tasks.c.state, tasks.c.dispatch_id).where(tasks.c.id == task_id)
            row = session.execute(query).one()
            return str(row.dispatch_id) if row.state == "dispatched" else None

    return task_id, eventually(state)


def test_what_is_put_off_beside_a_suspect_is_recorded(outbox: Outbox) -> None:
    suspect, neighbour = dispatched(outbox), dispatched(outbox)
    with outbox.engine.begin() as connection:
        connection.execute(sa.update(tasks).where(tasks.c.id == suspect[0]).values(recoveries=3))
    claimer = Claimer(outbox.context, outbox.broker.ports, "watched")
    messages = [decode(encode("watched", *pair)) for pair in (suspect, neighbour)]
    claim = claimer.claim(messages, threading.Event())
    claimer.close()
    assert [execution.task.id for execution in claim.executions] == [suspect[0]]
    born = [(None, "dispatching"), ("dispatching", "dispatched")]
    assert moves(outbox, suspect[0]) == [*born, ("dispatched", "running")]
    assert moves(outbox, neighbour[0]) == [*born, ("dispatched", "scheduled")]
    with Session(outbox.engine) as session:
        assert list(task_breaches(session, now=utc_now(), late_seconds=60.0)) == []


def test_what_redis_refuses_is_recorded(outbox: Outbox) -> None:
    def refuse(_name: str, _messages: object) -> int:
        raise redis.ResponseError("OOM command not allowed")

    outbox.context.scripts.push = refuse  # type: ignore[method-assign]
    with Session(outbox.engine) as session, session.begin():
        task_id = outbox.enqueue(session, WATCHED, Nothing()).id
    expected = [(None, "dispatching"), ("dispatching", "scheduled")]
    eventually(lambda: moves(outbox, task_id) == expected)
    with Session(outbox.engine) as session:
        row = session.execute(sa.select(tasks).where(tasks.c.id == task_id)).one()
    assert (row.state, row.dispatch_failures, row.lease_until) == ("scheduled", 1, None)
