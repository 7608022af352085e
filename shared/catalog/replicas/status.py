"""How far the copies on other channels are: for people, and for metrics."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import (
    Blob,
    Bucket,
    LocationAudit,
    Replica,
    ReplicaRule,
    ReplicaState,
    RuleState,
    Version,
    utc_clock,
)
from shared.outbox.schema import tasks

#: A bucket's waiting copies are counted up to this.
MOST_COUNTED = 10_000


class ReplicaLine(NamedTuple):
    """A replica, its content's size, and what its task says: answers so far, and when it is due."""

    replica: Replica
    size_bytes: int
    task_state: str | None
    attempts: int
    next_try_at: dt.datetime | None


class ChannelCounts(NamedTuple):
    """What waits and has failed on one channel, and since when the oldest waits."""

    channel: str
    pending: int
    failed: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStatus:
    """One rule of a bucket. `missing` is what the last whole walk over the locations lacked.

    None before the first walk has ended. `pending` and `failed` are counted up to `MOST_COUNTED`.
    """

    channel: str
    state: str
    missing: int | None
    compared_at: dt.datetime | None
    pending: int
    failed: int
    oldest_pending_at: dt.datetime | None
    changed_at: dt.datetime


def list_replicas(
    session: Session,
    tenant_id: str | None,
    *,
    state: str | None = None,
    channel: str | None = None,
    after: int = 0,
    limit: int = 100,
) -> list[ReplicaLine]:
    """Return a page of a tenant's (None: of all) replicas by id, those above `after`."""
    states = [state] if state else [ReplicaState.FAILED, ReplicaState.PENDING]
    statement = (
        sa.select(Replica, Blob.size_bytes, tasks.c.state, tasks.c.attempt, tasks.c.due_at)
        .join(Blob, Blob.id == Replica.blob_id)
        .outerjoin(tasks, tasks.c.id == Replica.task_id)
        .where(Replica.state.in_(states), Replica.id > after)
        .order_by(Replica.id)
        .limit(limit)
    )
    if tenant_id is not None:
        statement = statement.where(Replica.tenant_id == tenant_id)
    if channel is not None:
        statement = statement.where(Replica.channel == channel)
    lines = []
    for row, size_bytes, task_state, attempt, due_at in session.execute(statement):
        is_waiting = row.state == ReplicaState.PENDING
        lines.append(
            ReplicaLine(
                row,
                size_bytes,
                task_state,
                row.tries + (attempt or 0 if is_waiting else 0),
                due_at if is_waiting else None,
            )
        )
    return lines


def rule_status(session: Session, bucket: Bucket) -> list[RuleStatus]:
    """Return how far each rule of a bucket is, removed ones that are being let go of too."""
    rules = session.scalars(
        sa.select(ReplicaRule)
        .where(ReplicaRule.bucket_id == bucket.id, ReplicaRule.state != RuleState.ENDED)
        .order_by(ReplicaRule.channel)
    ).all()
    return [_status(session, bucket, rule) for rule in rules]


def channel_counts(session: Session) -> list[ChannelCounts]:
    """Return what waits and has failed, by channel."""
    is_pending = Replica.state == ReplicaState.PENDING
    now = session.scalar(sa.select(utc_clock()))
    rows = session.execute(
        sa.select(
            Replica.channel,
            sa.func.sum(sa.case((is_pending, 1), else_=0)),
            sa.func.sum(sa.case((is_pending, 0), else_=1)),
            sa.func.min(sa.case((is_pending, Replica.updated_at))),
        )
        .where(Replica.state.in_((ReplicaState.PENDING, ReplicaState.FAILED)))
        .group_by(Replica.channel)
        .order_by(Replica.channel)
    )
    return [
        ChannelCounts(channel, int(pending), int(failed), _age(now, oldest))
        for channel, pending, failed, oldest in rows
    ]


def missing_copies(session: Session) -> dict[str, int]:
    """Return by channel how many copies the last walks over the locations lacked."""
    rows = session.execute(
        sa.select(ReplicaRule.channel, sa.func.sum(ReplicaRule.missing))
        .where(ReplicaRule.state == RuleState.ACTIVE, ReplicaRule.missing.is_not(None))
        .group_by(ReplicaRule.channel)
    )
    return {channel: int(missing or 0) for channel, missing in rows}


def audits(session: Session) -> Sequence[LocationAudit]:
    """Return how far the looks at the channels have come."""
    return session.scalars(sa.select(LocationAudit).order_by(LocationAudit.channel)).all()


def _status(session: Session, bucket: Bucket, rule: ReplicaRule) -> RuleStatus:
    own = sa.exists().where(Version.blob_id == Replica.blob_id, Version.bucket_id == bucket.id)

    def counted(state: ReplicaState) -> tuple[int, dt.datetime | None]:
        page = (
            sa.select(Replica.updated_at)
            .where(Replica.state == state, Replica.channel == rule.channel, own)
            .limit(MOST_COUNTED)
            .subquery()
        )
        count, oldest = session.execute(
            sa.select(sa.func.count(), sa.func.min(page.c.updated_at))
        ).one()
        return int(count), oldest

    pending, oldest = counted(ReplicaState.PENDING)
    failed, _ = counted(ReplicaState.FAILED)
    return RuleStatus(
        channel=rule.channel,
        state=rule.state,
        missing=rule.missing if rule.state == RuleState.ACTIVE else None,
        compared_at=rule.passed_at,
        pending=pending,
        failed=failed,
        oldest_pending_at=oldest,
        changed_at=rule.changed_at,
    )


def _age(now: dt.datetime | None, moment: dt.datetime | None) -> float:
    if now is None or moment is None:
        return 0.0
    return max(0.0, (now - moment).total_seconds())
