"""Invariants of the catalogue's rows among themselves."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import (
    Blob,
    BlobRef,
    BlobState,
    HolderKind,
    Location,
    ObjectRow,
    Review,
    ReviewState,
    Version,
    VersionState,
)
from shared.catalog.models.states import SERVED
from shared.catalog.payloads import DELETE_BLOB, REVIEW_CHECK, UPLOAD_STORE
from shared.outbox.invariants import Breach
from shared.outbox.schema import tasks
from shared.outbox.states import ACTIVE

_ACTIVE = tuple(state.value for state in sorted(ACTIVE))


def row_breaches(session: Session, *, now: dt.datetime, late_seconds: float) -> Iterator[Breach]:
    """Yield what is wrong with the rows; what is younger than `late_seconds` may be on its way."""
    late = now - dt.timedelta(seconds=late_seconds)
    yield from _references(session)
    yield from _unreferenced(session, late)
    yield from _live_twice(session)
    yield from _keys_twice(session)
    yield from _current(session)
    yield from _served(session)
    yield from _superseded(session)
    yield from _unfinished(session, late)
    yield from _orphan_tasks(session, late)
    yield from _reviewed(session)


def _references(session: Session) -> Iterator[Breach]:
    matches = sa.and_(
        BlobRef.blob_id == Version.blob_id,
        BlobRef.holder_kind == HolderKind.VERSION,
        BlobRef.holder_id == Version.id,
    )
    lacking = (
        sa.select(Version.id, Version.blob_id)
        .outerjoin(BlobRef, matches)
        .where(Version.state == VersionState.STORED, BlobRef.id.is_(None))
    )
    for version_id, blob_id in session.execute(lacking):
        detail = f"stored, but has no reference to blob {blob_id}"
        yield Breach("references are the stored versions", f"version {version_id}", detail)
    surplus = (
        sa.select(BlobRef.id, BlobRef.blob_id, BlobRef.holder_id, Version.state)
        .outerjoin(Version, sa.and_(Version.id == BlobRef.holder_id))
        .where(
            BlobRef.holder_kind == HolderKind.VERSION,
            sa.or_(
                Version.id.is_(None),
                Version.state != VersionState.STORED,
                Version.blob_id != BlobRef.blob_id,
            ),
        )
    )
    for ref_id, blob_id, version_id, state in session.execute(surplus):
        detail = f"of version {version_id} ({state}) to blob {blob_id}"
        yield Breach("references are the stored versions", f"reference {ref_id}", detail)


def _unreferenced(session: Session, late: dt.datetime) -> Iterator[Breach]:
    held = sa.exists().where(BlobRef.blob_id == Blob.id)
    deleting = _active_task(DELETE_BLOB)
    query = sa.select(Blob.id, Blob.state, Blob.delete_after).where(
        ~held,
        sa.or_(
            Blob.state == BlobState.LIVE,
            sa.and_(Blob.state == BlobState.CONDEMNED, Blob.delete_after < late),
        ),
    )
    for blob_id, state, due in session.execute(query):
        detail = f"{state} without a reference, due {due}"
        yield Breach("nothing unreferenced outlives the grace", f"blob {blob_id}", detail)
    payload = sa.func.json_extract(tasks.c.payload, "$.p.blob_id")
    busy = {int(row[0]) for row in session.execute(deleting.with_only_columns(payload))}
    owned = sa.select(Blob.id).where(Blob.state == BlobState.DELETING)
    for (blob_id,) in session.execute(owned):
        if blob_id not in busy:
            detail = "deleting, but no delete task is unfinished"
            yield Breach("unfinished rows have their task", f"blob {blob_id}", detail)


def _live_twice(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Blob.tenant_id, Blob.sha256, sa.func.count())
        .where(Blob.state.in_((BlobState.LIVE, BlobState.CONDEMNED)))
        .group_by(Blob.tenant_id, Blob.sha256, Blob.size_bytes)
        .having(sa.func.count() > 1)
    )
    for tenant, digest, count in session.execute(query):
        subject = f"content {digest} of {tenant}"
        yield Breach("a content is live at most once", subject, f"live {count} times")


def _keys_twice(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Location.channel, Location.key, sa.func.count())
        .group_by(Location.channel, Location.key)
        .having(sa.func.count() > 1)
    )
    for channel, key, count in session.execute(query):
        yield Breach("a physical key is used once", f"{channel}:{key}", f"{count} locations")


def _current(session: Session) -> Iterator[Breach]:
    stored = (
        sa.select(
            Version.object_id,
            sa.func.count().label("stored"),
            sa.func.max(Version.id).label("newest"),
        )
        .where(Version.state == VersionState.STORED)
        .group_by(Version.object_id)
        .subquery()
    )
    query = (
        sa.select(ObjectRow.id, ObjectRow.current_version_id, stored.c.stored, stored.c.newest)
        .outerjoin(stored, stored.c.object_id == ObjectRow.id)
        .where(
            sa.or_(
                stored.c.stored > 1,
                sa.func.coalesce(stored.c.newest, 0)
                != sa.func.coalesce(ObjectRow.current_version_id, 0),
            )
        )
    )
    for object_id, current, count, newest in session.execute(query):
        detail = f"current is {current}, {count or 0} stored, the newest {newest}"
        yield Breach("one stored version is current", f"object {object_id}", detail)


def _served(session: Session) -> Iterator[Breach]:
    newest = (
        sa.select(Version.object_id, sa.func.max(Version.generation).label("generation"))
        .where(Version.state.in_(SERVED))
        .group_by(Version.object_id)
        .subquery()
    )
    chosen = sa.orm.aliased(Version)
    query = (
        sa.select(ObjectRow.id, ObjectRow.served_version_id, newest.c.generation, chosen.generation)
        .outerjoin(newest, newest.c.object_id == ObjectRow.id)
        .outerjoin(chosen, chosen.id == ObjectRow.served_version_id)
        .where(sa.func.coalesce(newest.c.generation, -1) != sa.func.coalesce(chosen.generation, -1))
    )
    for object_id, served, wanted, found in session.execute(query):
        detail = f"serves version {served} (generation {found}), should serve generation {wanted}"
        yield Breach("the newest readable version is served", f"object {object_id}", detail)


def _superseded(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Version.id, Version.generation, ObjectRow.generation)
        .join(ObjectRow, ObjectRow.id == Version.object_id)
        .where(Version.state == VersionState.SUPERSEDED, Version.generation >= ObjectRow.generation)
    )
    for version_id, generation, newest in session.execute(query):
        detail = f"generation {generation}, the object has {newest}"
        yield Breach("what superseded it is newer", f"version {version_id}", detail)


def _unfinished(session: Session, late: dt.datetime) -> Iterator[Breach]:
    doubtful = sa.exists().where(
        Review.version_id == Version.id, Review.state == ReviewState.DOUBTFUL
    )
    query = (
        sa.select(Version.id, Version.state, Version.task_id, tasks.c.state)
        .outerjoin(tasks, tasks.c.id == Version.task_id)
        .where(
            Version.state.in_((VersionState.PENDING, VersionState.REVIEWING)),
            Version.created_at < late,
            sa.or_(tasks.c.id.is_(None), tasks.c.state.not_in(_ACTIVE)),
            ~sa.and_(Version.state == VersionState.REVIEWING, doubtful),
        )
    )
    for version_id, state, task_id, task_state in session.execute(query):
        detail = f"{state}, but task {task_id} is {task_state}"
        yield Breach("unfinished rows have their task", f"version {version_id}", detail)


def _orphan_tasks(session: Session, late: dt.datetime) -> Iterator[Breach]:
    for kind, state in (
        (UPLOAD_STORE, VersionState.PENDING),
        (REVIEW_CHECK, VersionState.REVIEWING),
    ):
        query = (
            _active_task(kind)
            .with_only_columns(tasks.c.id, tasks.c.state, Version.id, Version.state)
            .outerjoin(Version, Version.task_id == tasks.c.id)
            .where(
                tasks.c.cancel_requested == 0,
                tasks.c.created_at < late,
                sa.or_(Version.id.is_(None), Version.state != state),
            )
        )
        for task_id, task_state, version_id, version_state in session.execute(query):
            detail = f"{kind} is {task_state}, its version {version_id} is {version_state}"
            yield Breach("unfinished tasks have their row", f"task {task_id}", detail)


def _reviewed(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Version.id, Version.state, Review.state)
        .join(Review, Review.version_id == Version.id)
        .where(
            Version.state.in_((VersionState.PENDING, VersionState.STORED)),
            Review.state != ReviewState.PASSED,
        )
    )
    for version_id, state, review in session.execute(query):
        detail = f"{state}, but its review is {review}"
        yield Breach("only what passed is stored", f"version {version_id}", detail)


def _active_task(kind: str) -> sa.Select[tuple[int]]:
    return sa.select(tasks.c.id).where(tasks.c.kind == kind, tasks.c.state.in_(_ACTIVE))
