"""Reading for people: tasks by keyset, one task with attempts and events, nodes, the audit trail.

Nothing here locks or writes; a list costs about as much as it returns, whatever the table holds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.outbox.schema import nodes, task_attempts, task_audit, task_events, tasks
from shared.outbox.states import State

#: Rows that one page may have.
MAX_PAGE = 1000
#: Attempts and events shown with one task: the newest ones.
MAX_DETAILS = 200
#: A row may commit this long after the clock of its `created_at`, so ids follow time only roughly.
_COMMIT_SLACK = dt.timedelta(minutes=5)
_EARLIEST = dt.datetime(1, 1, 1)

Row = sa.RowMapping

_BRIEF = [
    tasks.c[name]
    for name in (
        "id", "queue", "region", "kind", "tenant_id", "state", "priority", "attempt",
        "max_attempts", "recoveries", "cancel_requested", "error_code", "error_detail",
        "resource_key", "due_at", "created_at", "started_at", "finished_at",
    )
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks a list shows; None leaves a column out. `since` is naive UTC."""

    state: State | None = None
    queue: str | None = None
    kind: str | None = None
    tenant_id: str | None = None
    since: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Rows, newest first; `next_before` continues the list, None at its end."""

    items: Sequence[Row]
    next_before: int | None


@dataclass(frozen=True, slots=True)
class TaskDetail:
    """One task with everything that is kept of it. Attempts and events are in order of time."""

    task: Row
    attempts: Sequence[Row]
    events: Sequence[Row]


def list_tasks(
    session: Session, wanted: TaskFilter, *, before: int | None = None, limit: int = 100
) -> Page:
    """Return the tasks that fit, newest first, those with an id below `before`."""
    query = sa.select(*_BRIEF)
    for name in ("state", "queue", "kind", "tenant_id"):
        value = getattr(wanted, name)
        if value is not None and not value.isascii():
            # No row has such a name, and MariaDB refuses to compare it.
            return Page([], None)
        if value is not None:
            query = query.where(tasks.c[name] == value)
    if wanted.since is not None:
        first = _first_id_since(session, wanted.since)
        query = query.where(tasks.c.id >= first, tasks.c.created_at >= wanted.since)
    return _page(session, query, tasks.c.id, before, limit)


def show_task(session: Session, task_id: int, *, tenant_id: str | None = None) -> TaskDetail | None:
    """Return one task, None when there is none or `tenant_id` is given and it is another's."""
    query = sa.select(tasks).where(tasks.c.id == task_id)
    if tenant_id is not None:
        if not tenant_id.isascii():
            return None
        query = query.where(tasks.c.tenant_id == tenant_id)
    row = session.execute(query).mappings().first()
    if row is None:
        return None
    return TaskDetail(
        task=row,
        attempts=_newest(session, task_attempts, task_id),
        events=_newest(session, task_events, task_id),
    )


def list_audit(
    session: Session,
    *,
    tenant_id: str | None = None,
    task_id: int | None = None,
    before: int | None = None,
    limit: int = 100,
) -> Page:
    """Return manual actions, newest first."""
    query = sa.select(task_audit)
    if tenant_id is not None:
        query = query.where(task_audit.c.tenant_id == tenant_id)
    if task_id is not None:
        query = query.where(task_audit.c.task_id == task_id)
    return _page(session, query, task_audit.c.id, before, limit)


def list_nodes(session: Session) -> Sequence[Row]:
    """Return every process that has reported lately, by name."""
    return session.execute(sa.select(nodes).order_by(nodes.c.node).limit(MAX_PAGE)).mappings().all()


def _page(
    session: Session, query: sa.Select[Any], key: sa.Column[int], before: int | None, limit: int
) -> Page:
    limit = max(1, min(limit, MAX_PAGE))
    if before is not None:
        query = query.where(key < before)
    rows = session.execute(query.order_by(key.desc()).limit(limit + 1)).mappings().all()
    return Page(rows[:limit], rows[limit - 1]["id"] if len(rows) > limit else None)


def _newest(session: Session, table: sa.Table, task_id: int) -> Sequence[Row]:
    query = sa.select(table).where(table.c.task_id == task_id)
    rows = session.execute(query.order_by(table.c.id.desc()).limit(MAX_DETAILS)).mappings().all()
    return rows[::-1]


def _first_id_since(session: Session, since: dt.datetime) -> int:
    """Return an id below which no row is as young as `since`.

    `created_at` has no index of its own; ids grow with it, so a bisection over the primary key
    finds the place in some twenty look-ups.
    """
    low, high = session.execute(sa.select(sa.func.min(tasks.c.id), sa.func.max(tasks.c.id))).one()
    if low is None:
        return 0
    bound = since - min(_COMMIT_SLACK, since - _EARLIEST)
    while low < high:
        middle = (low + high) // 2
        query = sa.select(tasks.c.id, tasks.c.created_at).where(tasks.c.id >= middle)
        row_id, created_at = session.execute(query.order_by(tasks.c.id).limit(1)).one()
        if created_at < bound:
            low = row_id + 1
        else:
            high = middle
    return int(low)
