"""Invariants of pulls from origins (I22, as far as rows show it), and of the work for them."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import OriginPull, OriginSegment, PullState, Version
from shared.catalog.payloads import ORIGIN_PULL
from shared.fetch import FetchPolicy
from shared.outbox.breach import Breach
from shared.outbox.schema import tasks
from shared.outbox.states import ACTIVE

_ACTIVE = sorted(ACTIVE)


def origin_breaches(session: Session, late: dt.datetime) -> Iterator[Breach]:
    """Yield what is wrong with pulls; what is younger than `late` is on its way."""
    yield from _without_task(session, late)
    yield from _tasks_for_nothing(session, late)
    yield from _twice_open(session)
    yield from _made_wrongly(session)
    yield from _left_segments(session, late)


def hop_breaches(session: Session, policy: FetchPolicy) -> Iterator[Breach]:
    """Yield pulls whose bytes came over a connection that was not allowed.

    What was allowed is what the worker noted (the entry of its allow-list, which must fit) or what
    `policy` has: this process may have been given other settings than the worker had then.
    """
    query = sa.select(OriginPull.id, OriginPull.hops).where(OriginPull.state != PullState.OPEN)
    for pull_id, hops in session.execute(query.execution_options(yield_per=500)):
        for host, port, address, *noted in (hops or {}).get("hops", ()):
            target = ipaddress.ip_address(address)
            then = FetchPolicy(ports=(port,), allow=filter(None, noted)) if noted else policy
            if not (then.permits(host, port, target) or policy.permits(host, port, target)):
                detail = f"it connected to {address} port {port} for {host}"
                yield Breach("pulls go to allowed addresses", f"pull {pull_id}", detail)


def _without_task(session: Session, late: dt.datetime) -> Iterator[Breach]:
    query = (
        sa.select(OriginPull.id, OriginPull.task_id, tasks.c.state)
        .outerjoin(tasks, tasks.c.id == OriginPull.task_id)
        .where(
            OriginPull.state == PullState.OPEN,
            OriginPull.created_at < late,
            sa.or_(
                tasks.c.id.is_(None), tasks.c.state.not_in(_ACTIVE), tasks.c.kind != ORIGIN_PULL
            ),
        )
    )
    for pull_id, task_id, state in session.execute(query):
        detail = f"open, but its task {task_id} is {state or 'not there'}"
        yield Breach("unfinished rows have their task", f"pull {pull_id}", detail)


def _tasks_for_nothing(session: Session, late: dt.datetime) -> Iterator[Breach]:
    query = (
        sa.select(tasks.c.id, tasks.c.state, OriginPull.id, OriginPull.state)
        .outerjoin(OriginPull, OriginPull.task_id == tasks.c.id)
        .where(
            tasks.c.kind == ORIGIN_PULL,
            tasks.c.state.in_(_ACTIVE),
            tasks.c.cancel_requested == 0,
            tasks.c.created_at < late,
            sa.or_(OriginPull.id.is_(None), OriginPull.state != PullState.OPEN),
        )
    )
    for task_id, state, pull_id, pull_state in session.execute(query):
        detail = f"{ORIGIN_PULL} is {state}, its pull {pull_id} is {pull_state}"
        yield Breach("unfinished tasks have their row", f"task {task_id}", detail)


def _twice_open(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(OriginPull.bucket_id, OriginPull.key, sa.func.count())
        .where(OriginPull.state == PullState.OPEN)
        .group_by(OriginPull.bucket_id, OriginPull.key, OriginPull.rule)
        .having(sa.func.count() > 1)
    )
    for bucket_id, key, count in session.execute(query):
        detail = f"{count} pulls of one rule are open"
        yield Breach("a key is pulled once at a time", f"{bucket_id}:{key}", detail)


def _made_wrongly(session: Session) -> Iterator[Breach]:
    """Yield pulls that are not the very next thing that happened to their key."""
    query = (
        sa.select(OriginPull.id, OriginPull.generation, Version.id, Version.generation)
        .outerjoin(
            Version,
            sa.and_(Version.id == OriginPull.version_id, Version.bucket_id == OriginPull.bucket_id),
        )
        .where(
            OriginPull.state == PullState.STORED,
            sa.or_(Version.id.is_(None), Version.generation != OriginPull.generation + 1),
        )
    )
    for pull_id, asked_at, version_id, generation in session.execute(query):
        detail = f"asked for at generation {asked_at}, its version {version_id} has {generation}"
        yield Breach("a pull fills an absent key only", f"pull {pull_id}", detail)


def _left_segments(session: Session, late: dt.datetime) -> Iterator[Breach]:
    query = (
        sa.select(OriginSegment.pull_id, OriginSegment.number, OriginPull.state)
        .outerjoin(OriginPull, OriginPull.id == OriginSegment.pull_id)
        .where(
            OriginSegment.created_at < late,
            sa.or_(OriginPull.id.is_(None), OriginPull.state != PullState.OPEN),
        )
    )
    for pull_id, number, state in session.execute(query):
        detail = f"stretch {number} is kept, but the pull is {state or 'not there'}"
        yield Breach("stretches belong to an open pull", f"pull {pull_id}", detail)
