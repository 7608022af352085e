"""What commands over the catalogue share: arguments, transactions, and who acts."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import sqlalchemy as sa
import typer
from sqlalchemy.orm import Session

from services.cli.stack import open_parts
from shared.catalog.kinds import RegisteredCatalogue
from shared.catalog.models import Base

T = TypeVar("T")

HERE = Path(".blox")
#: What the database's integers hold.
MAX_ID = 2**63 - 1
TenantArgument = Annotated[str, typer.Argument(help="The tenant's id.")]
BucketArgument = Annotated[str, typer.Argument(help="The bucket's name.")]
TenantOption = Annotated[str | None, typer.Option(help="Only this tenant; default: all.")]
IdArgument = Annotated[int, typer.Argument(help="Its id.", min=1, max=MAX_ID)]
AfterOption = Annotated[
    int, typer.Option(min=0, max=MAX_ID, help="Only ids above this: the next page.")
]
ReasonOption = Annotated[str, typer.Option(help="Why; kept with it.")]


@contextmanager
def reading(directory: Path) -> Iterator[Session]:
    """Open a transaction that writes nothing on the stack that is meant."""
    with open_parts(directory) as parts:
        engine = parts.engine.execution_options(read_only=True)
        with Session(engine) as session:
            yield session


def change(directory: Path, work: Callable[[Session, RegisteredCatalogue], T]) -> T:
    """Run `work` in one transaction, again after a deadlock or a lost race, and return its answer.

    The rows that it returns are gone with the session: it turns them into fields.
    """
    with open_parts(directory) as parts:
        return parts.outbox.context.db.run_session(lambda session: work(session, parts.catalogue))


def fields_of(row: Base, *, hidden: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the table keeps of a row, by the names that the code has for it."""
    names = (attribute.key for attribute in sa.inspect(type(row)).column_attrs)
    fields = {name: getattr(row, name) for name in names if name not in hidden}
    # Flags are numbers in the tables.
    return {
        name: bool(value) if name.startswith("is_") else value for name, value in fields.items()
    }


def who() -> str:
    """Return who acts, as the audit trail names it."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        # A container's user may have no name.
        return "cli"
