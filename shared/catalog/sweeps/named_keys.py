"""Which keys on a channel are named by rows: copies of blobs, and what backups hold there.

Whatever else fills channels adds its table here, else its uploads look abandoned.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import BackupContent, Location, LocationState
from shared.catalog.sweeps.locations import Intent, is_over, read_writers
from shared.outbox.schema import tasks
from shared.outbox.states import TERMINAL

#: Both tables use the same words for these.
_INTENT, _TOMBSTONE = LocationState.INTENT.value, LocationState.TOMBSTONE.value
_ON_THEIR_WAY_OUT = (LocationState.CONDEMNED.value, LocationState.DELETE_FAILED.value)


def named_keys(session: Session, channel: str, keys: Sequence[str]) -> set[str]:
    """Return those of the keys that may hold bytes, as some row has it."""
    return {row.key for row in _rows(session, channel, keys) if row.state != _TOMBSTONE}


def intent_keys(session: Session, channel: str, keys: Sequence[str]) -> set[str]:
    """Return those of the keys that stand as intents: a living execution may go on with them.

    Intents of executions that are over are condemned by the sweeps of their tables.
    """
    return {row.key for row in _rows(session, channel, keys) if row.state == _INTENT}


def keys_in_use(
    session: Session,
    channel: str,
    keys: Sequence[str],
    *,
    ended_after: dt.datetime,
    buried_after: dt.datetime,
) -> set[str]:
    """Return those of the keys to which bytes may still be on their way.

    Those of intents whose execution is not over, or was not at `ended_after`; of what is being
    removed; and of tombstones younger than `buried_after`.
    """
    rows = _rows(session, channel, keys)
    writers = read_writers(session, {row.task_id for row in rows})
    lately = _ended_since(session, {row.task_id for row in rows}, ended_after)
    return {
        row.key
        for row in rows
        if row.state in _ON_THEIR_WAY_OUT
        or (row.state == _TOMBSTONE and row.tombstone_at >= buried_after)
        or (
            row.state == _INTENT
            and (
                row.task_id in lately
                or not is_over(
                    writers.get(row.task_id), Intent(row.id, row.key, row.task_id, row.fence)
                )
            )
        )
    }


def _rows(session: Session, channel: str, keys: Sequence[str]) -> list[Any]:
    columns = ("id", "key", "state", "task_id", "fence", "tombstone_at")
    found: list[Any] = []
    for table, place in ((Location, Location.channel), (BackupContent, BackupContent.target)):
        query = sa.select(*(getattr(table, name) for name in columns))
        found += session.execute(query.where(place == channel, table.key.in_(keys))).all()
    return found


def _ended_since(session: Session, task_ids: set[int], moment: dt.datetime) -> set[int]:
    query = sa.select(tasks.c.id).where(
        tasks.c.id.in_(sorted(task_ids)),
        tasks.c.state.in_(sorted(TERMINAL)),
        tasks.c.finished_at >= moment,
    )
    return set(session.scalars(query))
