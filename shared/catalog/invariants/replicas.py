"""Invariants of copies on other channels (I18), and of the work that makes them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import (
    Blob,
    BlobState,
    Location,
    LocationState,
    Replica,
    ReplicaRule,
    ReplicaState,
    RuleState,
    Version,
    VersionState,
)
from shared.catalog.payloads import REPLICA_COPY, REPLICA_REPAIR
from shared.outbox.breach import Breach
from shared.outbox.schema import tasks
from shared.outbox.states import ACTIVE

_ACTIVE = sorted(ACTIVE)


def replica_breaches(session: Session, late: dt.datetime) -> Iterator[Breach]:
    """Yield what is wrong with replicas; what has changed after `late` is on its way."""
    yield from _placeless(session)
    yield from _without_task(session, late)
    yield from _tasks_for_nothing(session, late)
    yield from _unplanned(session, late)


def _placeless(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Replica.id, Replica.blob_id, Replica.channel)
        .join(Blob, Blob.id == Replica.blob_id)
        .where(
            Replica.state == ReplicaState.COMPLETED,
            Blob.state.in_((BlobState.LIVE, BlobState.CONDEMNED)),
            ~_place(Replica.blob_id, Replica.channel),
        )
    )
    for replica_id, blob_id, channel in session.execute(query):
        detail = f"no stored location has blob {blob_id} on {channel}"
        yield Breach("completed replicas have their copy", f"replica {replica_id}", detail)


def _without_task(session: Session, late: dt.datetime) -> Iterator[Breach]:
    query = (
        sa.select(Replica.id, Replica.task_id, tasks.c.state)
        .outerjoin(tasks, tasks.c.id == Replica.task_id)
        .where(
            Replica.state == ReplicaState.PENDING,
            Replica.updated_at < late,
            sa.or_(tasks.c.id.is_(None), tasks.c.state.not_in(_ACTIVE)),
        )
    )
    for replica_id, task_id, state in session.execute(query):
        detail = f"pending, but its task {task_id} is {state or 'not there'}"
        yield Breach("unfinished rows have their task", f"replica {replica_id}", detail)


def _tasks_for_nothing(session: Session, late: dt.datetime) -> Iterator[Breach]:
    query = (
        sa.select(tasks.c.id, tasks.c.kind, tasks.c.state)
        .outerjoin(
            Replica,
            sa.and_(Replica.task_id == tasks.c.id, Replica.state == ReplicaState.PENDING),
        )
        .where(
            tasks.c.kind.in_((REPLICA_COPY, REPLICA_REPAIR)),
            tasks.c.state.in_(_ACTIVE),
            tasks.c.cancel_requested == 0,
            tasks.c.created_at < late,
            Replica.id.is_(None),
        )
    )
    for task_id, kind, state in session.execute(query):
        detail = f"{kind} is {state}, and no replica waits for it"
        yield Breach("unfinished tasks have their row", f"task {task_id}", detail)


def _unplanned(session: Session, late: dt.datetime) -> Iterator[Breach]:
    """Yield what a rule asks for that is neither there nor under way.

    The first walk of a rule brings what was there before it.
    """
    query = (
        sa.select(Version.id, Version.blob_id, ReplicaRule.channel)
        .join(ReplicaRule, ReplicaRule.bucket_id == Version.bucket_id)
        .outerjoin(
            Replica,
            sa.and_(
                Replica.blob_id == Version.blob_id,
                Replica.channel == ReplicaRule.channel,
                Replica.state != ReplicaState.GONE,
            ),
        )
        .where(
            ReplicaRule.state == RuleState.ACTIVE,
            ReplicaRule.missing.is_not(None),
            ReplicaRule.passed_at < late,
            Version.state == VersionState.STORED,
            Version.stored_at < late,
            Replica.id.is_(None),
            ~_place(Version.blob_id, ReplicaRule.channel),
        )
    )
    for version_id, blob_id, channel in session.execute(query):
        detail = f"blob {blob_id} is not on {channel}, and no replica is to bring it there"
        yield Breach("copies that rules ask for are planned", f"version {version_id}", detail)


def _place(
    blob_id: sa.ColumnElement[int] | object, channel: sa.ColumnElement[str] | object
) -> sa.Exists:
    return sa.exists().where(
        Location.blob_id == blob_id,
        Location.channel == channel,
        Location.state == LocationState.STORED,
    )
