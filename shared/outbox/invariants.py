"""What must hold of tasks once everything is quiet. Read only; every breach is named."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.outbox.breach import Breach
from shared.outbox.histories import history_breaches
from shared.outbox.messages import queue_key
from shared.outbox.schema import nodes, tasks
from shared.outbox.states import TERMINAL, State


def task_breaches(session: Session, *, now: dt.datetime, late_seconds: float) -> Iterator[Breach]:
    """Yield what is wrong with the task rows.

    `now` is the database's clock, naive UTC. What is late by less than `late_seconds` is not: the
    scans have not looked yet.
    """
    late = now - dt.timedelta(seconds=late_seconds)
    yield from _dead_executions(session, late)
    yield from _stuck(session, late)
    yield from _too_many_attempts(session)
    yield from _half_ended(session)
    yield from _half_parked(session)
    yield from history_breaches(session, before=late)


def _dead_executions(session: Session, late: dt.datetime) -> Iterator[Breach]:
    query = sa.select(tasks.c.id, tasks.c.kind, tasks.c.owner, tasks.c.lease_until).where(
        tasks.c.state == State.RUNNING,
        sa.or_(tasks.c.lease_until < late, tasks.c.lease_until.is_(None), tasks.c.owner.is_(None)),
    )
    for row in session.execute(query):
        detail = f"{row.kind} runs for {row.owner}, whose lease ended at {row.lease_until}"
        yield Breach("running tasks have a living owner", f"task {row.id}", detail)


def _stuck(session: Session, late: dt.datetime) -> Iterator[Breach]:
    idle = _idle_queues(session, late)
    for state, column in (
        (State.SCHEDULED, tasks.c.due_at),
        (State.PENDING, tasks.c.due_at),
        (State.DISPATCHING, tasks.c.lease_until),
        (State.DISPATCHED, tasks.c.lease_until),
    ):
        query = sa.select(
            tasks.c.id, tasks.c.kind, tasks.c.queue, tasks.c.region, column.label("since")
        ).where(tasks.c.state == state, column < late)
        for row in session.execute(query):
            # Where nobody is there, or all have work, waiting is what it should do.
            is_for_workers = state in (State.PENDING, State.DISPATCHED)
            if is_for_workers and queue_key(row.queue, row.region) not in idle:
                continue
            detail = f"{row.kind} is {state.value} since {row.since}"
            yield Breach("nothing waits beyond the scans", f"task {row.id}", detail)


def _idle_queues(session: Session, late: dt.datetime) -> set[str]:
    """Return the queues, by their names in Redis, whose living workers have nothing to do."""
    query = sa.select(nodes.c.queues, nodes.c.threads, nodes.c.threads_busy)
    threads: Counter[str] = Counter()
    busy: Counter[str] = Counter()
    for row in session.execute(query.where(nodes.c.last_seen >= late)):
        for name in row.queues or []:
            threads[name] += row.threads
            busy[name] += row.threads_busy
    return {name for name, count in threads.items() if count and not busy[name]}


def _too_many_attempts(session: Session) -> Iterator[Breach]:
    query = sa.select(tasks.c.id, tasks.c.attempt, tasks.c.max_attempts).where(
        tasks.c.attempt > tasks.c.max_attempts
    )
    for row in session.execute(query):
        detail = f"{row.attempt} attempts of {row.max_attempts}"
        yield Breach("attempts stay within their limit", f"task {row.id}", detail)


def _half_ended(session: Session) -> Iterator[Breach]:
    has_ended = tasks.c.state.in_(sorted(TERMINAL))
    query = sa.select(tasks.c.id, tasks.c.state, tasks.c.finished_at, tasks.c.lease_until).where(
        sa.or_(
            sa.and_(
                has_ended,
                sa.or_(tasks.c.finished_at.is_(None), tasks.c.lease_until.is_not(None)),
            ),
            sa.and_(~has_ended, tasks.c.finished_at.is_not(None)),
        )
    )
    for row in session.execute(query):
        detail = f"{row.state}, finished at {row.finished_at}, leased until {row.lease_until}"
        yield Breach("a task has ended or it has not", f"task {row.id}", detail)


def _half_parked(session: Session) -> Iterator[Breach]:
    is_parked = sa.and_(tasks.c.state == State.BLOCKED, tasks.c.ordering_key.is_(None))
    query = sa.select(tasks.c.id, tasks.c.state, tasks.c.resource_key).where(
        sa.or_(
            sa.and_(is_parked, tasks.c.resource_key.is_(None)),
            sa.and_(tasks.c.state != State.BLOCKED, tasks.c.resource_key.is_not(None)),
        )
    )
    for row in session.execute(query):
        detail = f"{row.state}, resource {row.resource_key}"
        yield Breach("parked tasks name their resource", f"task {row.id}", detail)
