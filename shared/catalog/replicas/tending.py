"""Replicas whose task is over although they wait, or has failed a while ago: planned anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.locking import lock_blobs
from shared.catalog.models import BlobState, Replica, ReplicaState, utc_now
from shared.catalog.replicas.limits import PAGE_ROWS, ReplicaLimits
from shared.catalog.replicas.planning import anew, find, let_go
from shared.catalog.replicas.rules import wanted
from shared.outbox.db import Database
from shared.outbox.schema import tasks
from shared.outbox.states import TERMINAL


def tend(
    db: Database, catalogue: Catalogue, limits: ReplicaLimits, check: Callable[[], None]
) -> Counter[str]:
    """Give a page of such replicas a new task, or let go of those that nobody asks for."""
    counts: Counter[str] = Counter()
    if not catalogue.serves("replica"):
        return counts
    stuck = db.run_session(_without_task, read_only=True)
    failed = db.run_session(lambda session: _failed(session, limits.retry_seconds), read_only=True)
    for replica_id in dict.fromkeys((*stuck, *failed)):
        check()
        counts[db.run_session(partial(_again, catalogue=catalogue, replica_id=replica_id))] += 1
    return counts


def _again(session: Session, *, catalogue: Catalogue, replica_id: int) -> str:
    seen = session.get(Replica, replica_id)
    if seen is None:
        return "over"
    blob = lock_blobs(session, [seen.blob_id]).get(seen.blob_id)
    row = find(session, seen.blob_id, seen.channel)
    if row is None or row.state not in (ReplicaState.PENDING, ReplicaState.FAILED):
        return "over"
    if row.state == ReplicaState.PENDING and _has_task(session, row):
        return "over"
    if blob is None or blob.state != BlobState.LIVE:
        let_go(row, "blob_over")
        return "let_go"
    asked = wanted(session, blob.id)
    is_wanted = row.channel in asked.replicas or (
        row.lost_location_id is not None and asked.allows(row.channel)
    )
    if not is_wanted:
        let_go(row, "unwanted")
        return "let_go"
    return "planned" if anew(session, catalogue, row, region=asked.region) else "completed"


def _has_task(session: Session, row: Replica) -> bool:
    state = session.scalar(sa.select(tasks.c.state).where(tasks.c.id == row.task_id))
    return state is not None and state not in TERMINAL


def _without_task(session: Session) -> Sequence[int]:
    """Return waiting replicas whose task has ended, or is not there any more."""
    return session.scalars(
        sa.select(Replica.id)
        .outerjoin(tasks, tasks.c.id == Replica.task_id)
        .where(
            Replica.state == ReplicaState.PENDING,
            sa.or_(tasks.c.id.is_(None), tasks.c.state.in_(sorted(TERMINAL))),
        )
        .order_by(Replica.id)
        .limit(PAGE_ROWS)
    ).all()


def _failed(session: Session, age_seconds: float) -> Sequence[int]:
    return session.scalars(
        sa.select(Replica.id)
        .where(Replica.state == ReplicaState.FAILED, Replica.updated_at <= utc_now(-age_seconds))
        .order_by(Replica.id)
        .limit(PAGE_ROWS)
    ).all()
