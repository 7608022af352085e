"""Invariants of backups and restores: pins, what manifests need, and their tasks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.contents import READABLE
from shared.catalog.models import (
    BackupContent,
    BackupContentState,
    BackupItem,
    BackupItemState,
    BackupRun,
    BackupRunState,
    BlobRef,
    HolderKind,
    Loss,
    LossState,
    Restore,
    RestoreState,
)
from shared.outbox.breach import Breach
from shared.outbox.schema import tasks
from shared.outbox.states import ACTIVE

#: Tables with a task of their own, and the state in which they wait for it.
_WORK: tuple[tuple[Any, str, str], ...] = (
    (BackupRun, BackupRunState.OPEN, "backup run"),
    (BackupItem, BackupItemState.OPEN, "backup item"),
    (Loss, LossState.OPEN, "loss"),
    (Restore, RestoreState.OPEN, "restore"),
)


def backup_breaches(session: Session, late: dt.datetime, swept: dt.datetime) -> Iterator[Breach]:
    """Yield what is wrong with the rows of backups and restores.

    What is younger than `late` may be on its way; what an execution left behind after `swept`
    waits for the sweeps.
    """
    yield from _unpinned(session)
    yield from _pins_of_nobody(session, late)
    yield from _needed_contents(session)
    yield from _needed_manifests(session)
    for entity, state, name in _WORK:
        yield from _left_alone(session, entity, state, name, late)
    yield from _left_intents(session, swept)


def _unpinned(session: Session) -> Iterator[Breach]:
    own = sa.and_(
        BlobRef.blob_id == BackupItem.blob_id,
        BlobRef.holder_kind == HolderKind.BACKUP,
        BlobRef.holder_id == BackupItem.run_id,
    )
    query = (
        sa.select(BackupItem.id, BackupItem.blob_id)
        .join(BackupRun, BackupRun.id == BackupItem.run_id)
        .outerjoin(BlobRef, own)
        .where(
            BackupRun.state == BackupRunState.OPEN,
            BackupItem.state == BackupItemState.OPEN,
            BlobRef.id.is_(None),
        )
    )
    for item_id, blob_id in session.execute(query):
        detail = f"to be copied, but blob {blob_id} is free to go"
        yield Breach("what is to be backed up is pinned", f"backup item {item_id}", detail)


def _pins_of_nobody(session: Session, late: dt.datetime) -> Iterator[Breach]:
    query = (
        sa.select(BlobRef.id, BlobRef.blob_id, BlobRef.holder_id, BackupRun.state)
        .outerjoin(BackupRun, BackupRun.id == BlobRef.holder_id)
        .where(
            BlobRef.holder_kind == HolderKind.BACKUP,
            sa.or_(
                BackupRun.id.is_(None),
                sa.and_(BackupRun.state != BackupRunState.OPEN, BackupRun.ended_at < late),
                BackupRun.pins_until < late,
            ),
        )
    )
    for ref_id, blob_id, run_id, state in session.execute(query):
        detail = f"of backup run {run_id} ({state or 'not there'}) to blob {blob_id}"
        yield Breach("references have their holder", f"reference {ref_id}", detail)


def _needed_contents(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(BackupItem.id, BackupRun.id, BackupContent.id, BackupContent.state)
        .join(BackupRun, BackupRun.id == BackupItem.run_id)
        .outerjoin(BackupContent, BackupContent.id == BackupItem.content_id)
        .where(
            BackupRun.state.in_((BackupRunState.COMPLETE, BackupRunState.OPEN)),
            BackupItem.state == BackupItemState.DONE,
            sa.or_(BackupContent.id.is_(None), BackupContent.state.not_in(READABLE)),
        )
    )
    for item_id, run_id, content_id, state in session.execute(query):
        detail = f"run {run_id} names content {content_id}, which is {state or 'not there'}"
        yield Breach("backups have what they name", f"backup item {item_id}", detail)


def _needed_manifests(session: Session) -> Iterator[Breach]:
    unfinished = sa.exists().where(
        BackupItem.run_id == BackupRun.id, BackupItem.state == BackupItemState.OPEN
    )
    query = (
        sa.select(BackupRun.id, BackupContent.state)
        .outerjoin(BackupContent, BackupContent.id == BackupRun.manifest_id)
        .where(
            BackupRun.state == BackupRunState.COMPLETE,
            sa.or_(
                BackupContent.id.is_(None),
                BackupContent.state != BackupContentState.STORED,
                BackupContent.sha256 != BackupRun.manifest_sha256,
                unfinished,
            ),
        )
    )
    for run_id, state in session.execute(query):
        detail = f"complete, but its manifest is {state or 'not there'}, or an item is open"
        yield Breach("backups have what they name", f"backup run {run_id}", detail)


def _left_alone(
    session: Session, entity: Any, state: str, name: str, late: dt.datetime
) -> Iterator[Breach]:
    query = (
        sa.select(entity.id, entity.task_id, tasks.c.state)
        .outerjoin(tasks, tasks.c.id == entity.task_id)
        .where(
            entity.state == state,
            entity.created_at < late,
            # Where restores are switched off a loss has no task.
            sa.or_(entity.task_id.is_not(None), sa.literal(entity is not Loss)),
            sa.or_(tasks.c.id.is_(None), tasks.c.state.not_in(sorted(ACTIVE))),
        )
    )
    if entity is BackupItem:
        query = query.join(BackupRun, BackupRun.id == BackupItem.run_id).where(
            BackupRun.state.in_((BackupRunState.OPEN, BackupRunState.FOLLOWING))
        )
    for row_id, task_id, task_state in session.execute(query):
        detail = f"{state}, but its task {task_id} is {task_state or 'not there'}"
        yield Breach("unfinished rows have their task", f"{name} {row_id}", detail)


def _left_intents(session: Session, swept: dt.datetime) -> Iterator[Breach]:
    query = (
        sa.select(BackupContent.id, BackupContent.task_id, tasks.c.state)
        .outerjoin(tasks, tasks.c.id == BackupContent.task_id)
        .where(
            BackupContent.state == BackupContentState.INTENT,
            BackupContent.created_at < swept,
            sa.or_(
                tasks.c.id.is_(None),
                sa.and_(tasks.c.state.not_in(sorted(ACTIVE)), tasks.c.finished_at < swept),
            ),
        )
    )
    for content_id, task_id, state in session.execute(query):
        detail = f"an intent, but its task {task_id} is {state or 'not there'} and no sweep took it"
        yield Breach("unfinished rows have their task", f"backup content {content_id}", detail)
