"""Invariants between unfinished rows and unfinished tasks: one for one, in both directions."""

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
    Review,
    ReviewState,
    Version,
    VersionState,
)
from shared.catalog.payloads import REVIEW_CHECK, UPLOAD_STORE
from shared.outbox.breach import Breach
from shared.outbox.schema import tasks
from shared.outbox.states import ACTIVE, TERMINAL

_ACTIVE = tuple(sorted(ACTIVE))
_WORKED_ON_BY = ((VersionState.PENDING, UPLOAD_STORE), (VersionState.REVIEWING, REVIEW_CHECK))


def work_breaches(
    session: Session, late: dt.datetime, swept: dt.datetime, *, serves_deletions: bool = True
) -> Iterator[Breach]:
    """Yield rows that wait for a task that is not there, and tasks that work on nothing.

    What is younger than `late` may be on its way; what ended after `swept` waits for a sweep.
    """
    for state, kind in _WORKED_ON_BY:
        yield from _waiting_versions(session, late, state, kind)
        yield from _tasks_for_nothing(session, late, state, kind)
    if serves_deletions:
        yield from _deleting_blobs(session)
    yield from _left_intents(session, swept)


def _waiting_versions(
    session: Session, late: dt.datetime, state: VersionState, kind: str
) -> Iterator[Breach]:
    # A doubtful review waits for a person, not for its task.
    doubtful = sa.exists().where(
        Review.version_id == Version.id, Review.state == ReviewState.DOUBTFUL
    )
    query = (
        sa.select(Version.id, Version.task_id, tasks.c.kind, tasks.c.state)
        .outerjoin(tasks, tasks.c.id == Version.task_id)
        .where(
            Version.state == state,
            Version.created_at < late,
            sa.or_(tasks.c.id.is_(None), tasks.c.state.not_in(_ACTIVE), tasks.c.kind != kind),
            ~doubtful,
        )
    )
    for version_id, task_id, found, task_state in session.execute(query):
        detail = f"{state}, but its task {task_id} ({found}) is {task_state or 'not there'}"
        yield Breach("unfinished rows have their task", f"version {version_id}", detail)


def _tasks_for_nothing(
    session: Session, late: dt.datetime, state: VersionState, kind: str
) -> Iterator[Breach]:
    query = (
        sa.select(tasks.c.id, tasks.c.state, Version.id, Version.state)
        .outerjoin(Version, Version.task_id == tasks.c.id)
        .where(
            tasks.c.kind == kind,
            tasks.c.state.in_(_ACTIVE),
            tasks.c.cancel_requested == 0,
            tasks.c.created_at < late,
            sa.or_(Version.id.is_(None), Version.state != state),
        )
    )
    for task_id, task_state, version_id, version_state in session.execute(query):
        detail = f"{kind} is {task_state}, its version {version_id} is {version_state}"
        yield Breach("unfinished tasks have their row", f"task {task_id}", detail)


def _deleting_blobs(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Blob.id, Blob.delete_owner, tasks.c.state)
        .outerjoin(tasks, tasks.c.id == Blob.delete_owner)
        .where(
            Blob.state == BlobState.DELETING,
            sa.or_(tasks.c.id.is_(None), tasks.c.state.not_in(_ACTIVE)),
        )
    )
    for blob_id, owner, state in session.execute(query):
        detail = f"deleting, but its task {owner} is {state or 'not there'}"
        yield Breach("unfinished rows have their task", f"blob {blob_id}", detail)


def _left_intents(session: Session, swept: dt.datetime) -> Iterator[Breach]:
    query = (
        sa.select(Location.id, Location.task_id, tasks.c.state)
        .outerjoin(tasks, tasks.c.id == Location.task_id)
        .where(
            Location.state == LocationState.INTENT,
            Location.created_at < swept,
            sa.or_(
                tasks.c.id.is_(None),
                sa.and_(tasks.c.state.in_(sorted(TERMINAL)), tasks.c.finished_at < swept),
            ),
        )
    )
    for location_id, task_id, state in session.execute(query):
        detail = f"an intent, but its task {task_id} is {state or 'not there'} and no sweep took it"
        yield Breach("unfinished rows have their task", f"location {location_id}", detail)
