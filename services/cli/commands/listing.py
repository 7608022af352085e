"""The commands of all that has rows in a table (`list`, `show`, an action): told what to read.

Each function adds one command to a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import sqlalchemy as sa
import typer
from sqlalchemy.orm import InstrumentedAttribute, Session

from services.cli.commands.common import (
    HERE,
    MAX_ID,
    BucketArgument,
    IdArgument,
    TenantArgument,
    TenantOption,
    change,
    fields_of,
    reading,
)
from services.cli.render import Format, FormatOption, show_fields, show_rows
from services.cli.stack import DirectoryOption
from shared.catalog.buckets import get_bucket
from shared.catalog.kinds import RegisteredCatalogue
from shared.catalog.models import Base
from shared.core.errors import InvalidError

BeforeOption = Annotated[
    int | None, typer.Option(min=1, max=MAX_ID, help="Only ids below this: the next page.")
]
LimitOption = Annotated[int, typer.Option(min=1, max=1000)]
StateOption = Annotated[str | None, typer.Option(help="Only those in this state.")]
DEFAULT_LIMIT = 50

E = TypeVar("E", bound=Base)
_Fields = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What a list shows: the columns of a table, one line when it is empty, and its states.

    `also` adds what other tables know of the rows; `hidden` is never shown.
    """

    entity: Any
    columns: Sequence[str]
    empty: str
    states: type[StrEnum] | None = None
    default_state: str | None = None
    hidden: Sequence[str] = ()
    also: Callable[[Session, list[_Fields]], list[_Fields]] | None = None

    def help(self, about: str) -> str:
        """Return what the command's help says."""
        return about if self.states is None else f"{about}\n\nStates: {', '.join(self.states)}."

    def read(
        self,
        session: Session,
        *where: sa.ColumnElement[bool],
        state: str | None,
        before: int | None,
        limit: int,
    ) -> list[_Fields]:
        """Return a page of rows, the newest first. Raises InvalidError for a state that is none."""
        query = sa.select(self.entity).where(*where)
        if (wanted := self._state(state)) is not None:
            query = query.where(self.entity.state == wanted)
        if before is not None:
            query = query.where(self.entity.id < before)
        found = session.scalars(query.order_by(self.entity.id.desc()).limit(limit))
        rows = [fields_of(row, hidden=self.hidden) for row in found]
        return rows if self.also is None else self.also(session, rows)

    def show(self, rows: Sequence[_Fields], output: Format, *, limit: int) -> None:
        """Write a page; a full one says how to see the next."""
        show_rows(rows, self.columns, output, empty=self.empty)
        if output is Format.TABLE and len(rows) == limit:
            typer.echo(f"more: --before {rows[-1]['id']}")

    def _state(self, state: str | None) -> str | None:
        state = self.default_state if state is None else state
        if state is None or self.states is None:
            return state
        if state not in set(self.states):
            raise InvalidError(f"a state is one of {', '.join(self.states)}")
        return state


def add_bucket_list(
    app: typer.Typer, table: Table, bucket_id: InstrumentedAttribute[int], *, about: str
) -> None:
    """Add `list TENANT BUCKET`."""

    @app.command("list", help=table.help(about))
    def list_(
        tenant: TenantArgument,
        bucket: BucketArgument,
        state: StateOption = None,
        before: BeforeOption = None,
        limit: LimitOption = DEFAULT_LIMIT,
        output: FormatOption = Format.TABLE,
        directory: DirectoryOption = HERE,
    ) -> None:
        with reading(directory) as session:
            own = bucket_id == get_bucket(session, tenant, bucket).id
            rows = table.read(session, own, state=state, before=before, limit=limit)
        table.show(rows, output, limit=limit)


def add_list(app: typer.Typer, table: Table, *, about: str, name: str = "list") -> None:
    """Add a list over all tenants, or one."""

    @app.command(name, help=table.help(about))
    def list_(
        tenant: TenantOption = None,
        state: StateOption = None,
        before: BeforeOption = None,
        limit: LimitOption = DEFAULT_LIMIT,
        output: FormatOption = Format.TABLE,
        directory: DirectoryOption = HERE,
    ) -> None:
        where = [] if tenant is None else [table.entity.tenant_id == tenant]
        with reading(directory) as session:
            rows = table.read(session, *where, state=state, before=before, limit=limit)
        table.show(rows, output, limit=limit)


def add_bucket_show(
    app: typer.Typer, find: Callable[[Session, int, int], Base], *, about: str
) -> None:
    """Add `show TENANT BUCKET ID`; `find` is given the ids of the bucket and of the thing."""

    @app.command("show", help=about)
    def show(
        tenant: TenantArgument,
        bucket: BucketArgument,
        number: IdArgument,
        output: FormatOption = Format.TABLE,
        directory: DirectoryOption = HERE,
    ) -> None:
        with reading(directory) as session:
            found = find(session, get_bucket(session, tenant, bucket).id, number)
            fields = fields_of(found)
        show_fields(fields, output)


def add_bucket_action(
    app: typer.Typer,
    name: str,
    find: Callable[[Session, int, int], E],
    act: Callable[[Session, RegisteredCatalogue, E], E],
    *,
    about: str,
) -> None:
    """Add `NAME TENANT BUCKET ID`, which shows what `act` has made of the thing."""

    @app.command(name, help=about)
    def run(
        tenant: TenantArgument,
        bucket: BucketArgument,
        number: IdArgument,
        output: FormatOption = Format.TABLE,
        directory: DirectoryOption = HERE,
    ) -> None:
        def work(session: Session, catalogue: RegisteredCatalogue) -> _Fields:
            found = find(session, get_bucket(session, tenant, bucket).id, number)
            return fields_of(act(session, catalogue, found))

        show_fields(change(directory, work), output)
