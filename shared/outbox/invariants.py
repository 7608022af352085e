"""What must hold of tasks once everything is quiet. Read only; every breach is named."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.outbox.schema import nodes, task_events, tasks
from shared.outbox.states import State, is_legal

#: Rows read at a time.
_PAGE = 2000


@dataclass(frozen=True, slots=True)
class Breach:
    """An invariant that does not hold of one thing, and what was seen."""

    invariant: str
    subject: str
    detail: str


def task_breaches(session: Session, *, now: dt.datetime, late_seconds: float) -> Iterator[Breach]:
    """Yield what is wrong with the task rows.

    `now` is the database's clock, naive UTC. What is late by less than `late_seconds` is not: the
    scans have not looked yet.
    """
    late = now - dt.timedelta(seconds=late_seconds)
    yield from _dead_executions(session, late)
    yield from _stuck(session, late)
    yield from _too_many_attempts(session)
    yield from _illegal_moves(session)


def _dead_executions(session: Session, late: dt.datetime) -> Iterator[Breach]:
    query = sa.select(tasks.c.id, tasks.c.kind, tasks.c.owner, tasks.c.lease_until).where(
        tasks.c.state == State.RUNNING, tasks.c.lease_until < late
    )
    for row in session.execute(query):
        detail = f"{row.kind} runs for {row.owner}, whose lease ended at {row.lease_until}"
        yield Breach("running tasks have a living owner", f"task {row.id}", detail)


def _stuck(session: Session, late: dt.datetime) -> Iterator[Breach]:
    consumed = _consumed(session, late)
    for state, column in (
        (State.SCHEDULED, tasks.c.due_at),
        (State.PENDING, tasks.c.due_at),
        (State.DISPATCHING, tasks.c.lease_until),
    ):
        query = sa.select(tasks.c.id, tasks.c.kind, tasks.c.queue, column.label("since")).where(
            tasks.c.state == state, column < late
        )
        for row in session.execute(query):
            # Without anybody who could take it, waiting is what it should do.
            if state is State.PENDING and row.queue not in consumed:
                continue
            detail = f"{row.kind} is {state.value} since {row.since}"
            yield Breach("nothing waits beyond the scans", f"task {row.id}", detail)


def _consumed(session: Session, late: dt.datetime) -> set[str]:
    rows = session.execute(sa.select(nodes.c.queues).where(nodes.c.last_seen >= late))
    return {str(name).partition(".")[0] for row in rows for name in (row.queues or [])}


def _too_many_attempts(session: Session) -> Iterator[Breach]:
    query = sa.select(tasks.c.id, tasks.c.attempt, tasks.c.max_attempts).where(
        tasks.c.attempt > tasks.c.max_attempts
    )
    for row in session.execute(query):
        detail = f"{row.attempt} attempts of {row.max_attempts}"
        yield Breach("attempts stay within their limit", f"task {row.id}", detail)


def _illegal_moves(session: Session) -> Iterator[Breach]:
    last = 0
    columns = (task_events.c.id, task_events.c.task_id, task_events.c.data)
    while True:
        query = sa.select(*columns).where(task_events.c.id > last).order_by(task_events.c.id)
        page = session.execute(query.limit(_PAGE)).all()
        for row in page:
            data = json.loads(row.data) if isinstance(row.data, str) else row.data
            if "to" not in data or "from" not in data:
                continue
            source = None if data["from"] is None else State(data["from"])
            if not is_legal(source, State(data["to"])):
                detail = f"moved from {data['from']} to {data['to']}"
                yield Breach("only legal transitions happen", f"task {row.task_id}", detail)
        if len(page) < _PAGE:
            return
        last = page[-1].id
