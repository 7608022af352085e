"""Rows that wait for a task, page by page: what the sweep of unheard ends looks through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from shared.catalog.models import Copy, CopyState, Removal, RemovalState
from shared.catalog.sweeps.context import PAGE_ROWS
from shared.outbox.db import Database


def open_removals(db: Database) -> Iterator[Sequence[tuple[int, int | None]]]:
    """Yield pages of (row, task) of removals by prefix and copies that are under way."""
    yield from pages_of_open(db, Removal, Removal.state == RemovalState.RUNNING)
    yield from pages_of_open(db, Copy, Copy.state == CopyState.PENDING)


def pages_of_open(
    db: Database, entity: Any, where: sa.ColumnElement[bool]
) -> Iterator[Sequence[tuple[int, int | None]]]:
    """Yield pages of (row, task) of one table, by ascending id."""
    after = 0
    while True:
        statement = (
            sa.select(entity.id, entity.task_id)
            .where(where, entity.id > after)
            .order_by(entity.id)
            .limit(PAGE_ROWS)
        )
        page = db.run_session(
            lambda session, query=statement: [  # type: ignore[misc]
                (row[0], row[1]) for row in session.execute(query)
            ],
            read_only=True,
        )
        if not page:
            return
        yield page
        after = page[-1][0]
