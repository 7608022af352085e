"""One page of a list by ids: where it begins, how long it is, and where the next one begins.

Every list route reads one row more than it shows, and so knows whether there is a next page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import sqlalchemy as sa
from fastapi import Depends
from sqlalchemy.orm import Session

from services.api.views import DEFAULT_LIMIT, Cursor, Limit, PageView, View
from shared.catalog.models import Base

V = TypeVar("V", bound=View)
#: A table whose rows have ids.
E = TypeVar("E", bound=Base)


@dataclass(frozen=True, slots=True)
class Paging:
    """The page that a request asks for."""

    cursor: int | None
    limit: int

    @property
    def rows(self) -> int:
        """Return how many rows to read: one more than are shown."""
        return self.limit + 1

    def newest(self, session: Session, entity: type[E], *where: sa.ColumnElement[bool]) -> list[E]:
        """Read rows of a table, the largest ids first."""
        return self._read(session, entity, where, is_newest_first=True)

    def oldest(self, session: Session, entity: type[E], *where: sa.ColumnElement[bool]) -> list[E]:
        """Read rows of a table, the smallest ids first."""
        return self._read(session, entity, where, is_newest_first=False)

    def _read(
        self,
        session: Session,
        entity: type[E],
        where: Sequence[sa.ColumnElement[bool]],
        *,
        is_newest_first: bool,
    ) -> list[E]:
        number = entity.__table__.c.id
        query = sa.select(entity).where(*where)
        if self.cursor is not None:
            query = query.where(number < self.cursor if is_newest_first else number > self.cursor)
        order = number.desc() if is_newest_first else number
        return list(session.scalars(query.order_by(order).limit(self.rows)))

    def show(self, rows: Sequence[Any], view: type[V]) -> PageView[V]:
        """Return the page of rows, or of views made of them, that were read."""
        is_more = len(rows) > self.limit
        return PageView(
            items=[view.model_validate(row) for row in rows[: self.limit]],
            next_cursor=rows[self.limit - 1].id if is_more else None,
        )


def _paging(cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> Paging:
    return Paging(cursor, limit)


PagingDep = Annotated[Paging, Depends(_paging)]
