"""What a run is made of, for whoever asks which contents it lacks."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import BackupItem, BackupItemState, BackupRun, ObjectRow, Version

#: Keys that are told of one content.
MOST_KEYS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedItem:
    """One content of a run, with some of the keys under which the bucket has or had it."""

    id: int
    blob_id: int
    keys: list[str]
    state: str
    size_bytes: int
    is_reused: int
    error_code: str | None
    task_id: int | None
    ended_at: dt.datetime | None


def list_items(
    session: Session, run: BackupRun, *, state: BackupItemState | None, after: int, limit: int
) -> list[ListedItem]:
    """Return a page of a run's items by id. There are none of a run that was dropped."""
    query = sa.select(BackupItem).where(BackupItem.run_id == run.id, BackupItem.id > after)
    if state is not None:
        query = query.where(BackupItem.state == state)
    items = session.scalars(query.order_by(BackupItem.id).limit(limit)).all()
    keys = _keys(session, run, [item.blob_id for item in items])
    return [
        ListedItem(
            id=item.id,
            blob_id=item.blob_id,
            keys=keys[item.blob_id],
            state=item.state,
            size_bytes=item.size_bytes,
            is_reused=item.is_reused,
            error_code=item.error_code,
            task_id=item.task_id,
            ended_at=item.ended_at,
        )
        for item in items
    ]


def _keys(session: Session, run: BackupRun, blob_ids: Sequence[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    # Counted by content: one that stands under very many keys leaves room for the others'.
    number = sa.func.row_number().over(partition_by=Version.blob_id, order_by=ObjectRow.key)
    numbered = (
        sa.select(Version.blob_id, ObjectRow.key, number.label("number"))
        .join(ObjectRow, ObjectRow.id == Version.object_id)
        .where(
            Version.blob_id.in_(blob_ids),
            Version.bucket_id == run.bucket_id,
            Version.stored_at <= run.snapshot_at,
        )
        .group_by(Version.blob_id, ObjectRow.key)
        .subquery()
    )
    rows = session.execute(
        sa.select(numbered.c.blob_id, numbered.c.key)
        .where(numbered.c.number <= MOST_KEYS)
        .order_by(numbered.c.blob_id, numbered.c.key)
    )
    for blob_id, key in rows:
        found[blob_id].append(key)
    return found
