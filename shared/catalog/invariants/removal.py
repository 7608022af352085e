"""Invariants of holds, removals by prefix and copies: their references, and their tasks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import (
    Blob,
    BlobRef,
    BlobState,
    Copy,
    CopyState,
    Hold,
    HolderKind,
    HoldState,
    Removal,
    RemovalState,
)
from shared.outbox.breach import Breach
from shared.outbox.schema import tasks
from shared.outbox.states import ACTIVE

#: Who pins a blob: the kind of its reference, its table, and the state in which it does.
_PINS: tuple[tuple[HolderKind, Any, str], ...] = (
    (HolderKind.HOLD, Hold, HoldState.ACTIVE),
    (HolderKind.COPY, Copy, CopyState.PENDING),
)
_WORK: tuple[tuple[Any, str], ...] = (
    (Removal, RemovalState.RUNNING),
    (Copy, CopyState.PENDING),
)


def removal_breaches(session: Session, late: dt.datetime) -> Iterator[Breach]:
    """Yield pins without their reference or content, references of nobody, and work left alone.

    What is younger than `late` may be on its way.
    """
    for kind, holder, state in _PINS:
        yield from _unheld(session, kind, holder, state)
        yield from _of_nobody(session, kind, holder, state)
    for entity, state in _WORK:
        yield from _left_alone(session, entity, state, late)


def _unheld(session: Session, kind: HolderKind, holder: Any, state: str) -> Iterator[Breach]:
    own = sa.and_(
        BlobRef.blob_id == holder.blob_id,
        BlobRef.holder_kind == kind,
        BlobRef.holder_id == holder.id,
    )
    query = (
        sa.select(holder.id, holder.blob_id, Blob.state)
        .outerjoin(BlobRef, own)
        .outerjoin(Blob, Blob.id == holder.blob_id)
        .where(
            holder.state == state,
            sa.or_(BlobRef.id.is_(None), Blob.id.is_(None), Blob.state != BlobState.LIVE),
        )
    )
    for holder_id, blob_id, found in session.execute(query):
        detail = f"{state}, but blob {blob_id} is {found or 'not there'}, or not referred to"
        yield Breach("what is held is there", f"{kind} {holder_id}", detail)


def _of_nobody(session: Session, kind: HolderKind, holder: Any, state: str) -> Iterator[Breach]:
    query = (
        sa.select(BlobRef.id, BlobRef.holder_id, holder.state)
        .outerjoin(holder, holder.id == BlobRef.holder_id)
        .where(
            BlobRef.holder_kind == kind,
            sa.or_(holder.id.is_(None), holder.state != state, holder.blob_id != BlobRef.blob_id),
        )
    )
    for ref_id, holder_id, found in session.execute(query):
        detail = f"of {kind} {holder_id}, which is {found or 'not there'}"
        yield Breach("references have their holder", f"reference {ref_id}", detail)


def _left_alone(session: Session, entity: Any, state: str, late: dt.datetime) -> Iterator[Breach]:
    query = (
        sa.select(entity.id, entity.task_id, tasks.c.state)
        .outerjoin(tasks, tasks.c.id == entity.task_id)
        .where(
            entity.state == state,
            entity.created_at < late,
            sa.or_(tasks.c.id.is_(None), tasks.c.state.not_in(sorted(ACTIVE))),
        )
    )
    for row_id, task_id, found in session.execute(query):
        detail = f"{state}, but its task {task_id} is {found or 'not there'}"
        subject = f"{entity.__tablename__} {row_id}"
        yield Breach("unfinished rows have their task", subject, detail)
