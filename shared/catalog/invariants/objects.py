"""Invariants of objects: which of their versions is current, which is served, which is over."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from shared.catalog.models import SERVED, ObjectRow, Version, VersionState
from shared.outbox.breach import Breach

_SERVED = tuple(sorted(SERVED))


def object_breaches(session: Session) -> Iterator[Breach]:
    """Yield what is wrong with the rows of objects and their versions."""
    yield from _current(session)
    yield from _went_back(session)
    yield from _served(session)
    yield from _listed(session)
    yield from _waits_behind(session)
    yield from _superseded(session)


def _current(session: Session) -> Iterator[Breach]:
    stored = (
        sa.select(
            Version.object_id,
            sa.func.count().label("count"),
            sa.func.max(Version.generation).label("generation"),
        )
        .where(Version.state == VersionState.STORED)
        .group_by(Version.object_id)
        .subquery()
    )
    current = aliased(Version)
    query = (
        sa.select(ObjectRow.id, current.id, stored.c["count"])
        .outerjoin(stored, stored.c.object_id == ObjectRow.id)
        .outerjoin(
            current,
            sa.and_(
                current.id == ObjectRow.current_version_id,
                current.object_id == ObjectRow.id,
                current.state == VersionState.STORED,
            ),
        )
        .where(
            sa.or_(
                stored.c["count"] > 1,
                sa.func.coalesce(stored.c.generation, -1)
                != sa.func.coalesce(current.generation, -1),
                sa.and_(current.id.is_(None), ObjectRow.current_version_id.is_not(None)),
            )
        )
    )
    for object_id, found, count in session.execute(query):
        detail = f"{count or 0} versions are stored, the current one among them is {found}"
        yield Breach("one stored version is current", f"object {object_id}", detail)


def _went_back(session: Session) -> Iterator[Breach]:
    newer = aliased(Version)
    query = (
        sa.select(Version.object_id, Version.generation, sa.func.max(newer.generation))
        .join(newer, newer.object_id == Version.object_id)
        .where(
            Version.state == VersionState.STORED,
            newer.state.in_((VersionState.REPLACED, VersionState.DELETED)),
            newer.stored_at.is_not(None),
            newer.generation > Version.generation,
        )
        .group_by(Version.object_id, Version.generation)
    )
    for object_id, generation, gone in session.execute(query):
        detail = f"generation {generation} is current, {gone} was before"
        yield Breach("what is current never goes back", f"object {object_id}", detail)


def _served(session: Session) -> Iterator[Breach]:
    newest = (
        sa.select(Version.object_id, sa.func.max(Version.generation).label("generation"))
        .where(Version.state.in_(_SERVED))
        .group_by(Version.object_id)
        .subquery()
    )
    chosen = aliased(Version)
    query = (
        sa.select(
            ObjectRow.id,
            ObjectRow.served_version_id,
            chosen.state,
            newest.c.generation,
            chosen.generation,
        )
        .outerjoin(newest, newest.c.object_id == ObjectRow.id)
        .outerjoin(
            chosen,
            sa.and_(chosen.id == ObjectRow.served_version_id, chosen.object_id == ObjectRow.id),
        )
        .where(
            sa.or_(
                sa.func.coalesce(newest.c.generation, -1)
                != sa.func.coalesce(chosen.generation, -1),
                sa.and_(chosen.id.is_(None), ObjectRow.served_version_id.is_not(None)),
            )
        )
    )
    for object_id, served, state, wanted, found in session.execute(query):
        detail = f"serves version {served} ({state}, generation {found}), should serve {wanted}"
        yield Breach("the newest readable version is served", f"object {object_id}", detail)


def _listed(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(ObjectRow.id, ObjectRow.is_listed, ObjectRow.size_bytes, ObjectRow.etag)
        .outerjoin(Version, Version.id == ObjectRow.served_version_id)
        .where(
            sa.or_(
                sa.and_(ObjectRow.is_listed == 1, Version.id.is_(None)),
                sa.and_(
                    Version.id.is_not(None),
                    sa.or_(
                        ObjectRow.is_listed != 1,
                        ObjectRow.size_bytes.is_distinct_from(Version.size_bytes),
                        ObjectRow.etag.is_distinct_from(Version.etag),
                    ),
                ),
            )
        )
    )
    for object_id, is_listed, size, etag in session.execute(query):
        detail = f"listed {is_listed}, {size} bytes, ETag {etag}: not what is served"
        yield Breach("listings tell what is served", f"object {object_id}", detail)


def _waits_behind(session: Session) -> Iterator[Breach]:
    newer = aliased(Version)
    query = (
        sa.select(Version.id, Version.state, sa.func.max(newer.id))
        .join(newer, newer.object_id == Version.object_id)
        .where(
            Version.state.in_((VersionState.PENDING, VersionState.FAILED)),
            newer.state.in_(_SERVED),
            newer.generation > Version.generation,
        )
        .group_by(Version.id, Version.state)
    )
    for version_id, state, newer_id in session.execute(query):
        detail = f"{state}, although version {newer_id} is newer and readable"
        yield Breach("a newer write ends the older ones", f"version {version_id}", detail)


def _superseded(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Version.id, Version.generation, ObjectRow.generation)
        .join(ObjectRow, ObjectRow.id == Version.object_id)
        .where(Version.state == VersionState.SUPERSEDED, Version.generation >= ObjectRow.generation)
    )
    for version_id, generation, newest in session.execute(query):
        detail = f"generation {generation}, the object has {newest}"
        yield Breach("what superseded it is newer", f"version {version_id}", detail)
