"""`blox holds`: content that must stay: list, place and release holds."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

import sqlalchemy as sa
import typer
from sqlalchemy.orm import Session

from services.cli.commands.common import (
    HERE,
    BucketArgument,
    IdArgument,
    TenantArgument,
    change,
    fields_of,
    who,
)
from services.cli.commands.listing import Table, add_list
from services.cli.render import Format, FormatOption, show_fields
from services.cli.stack import DirectoryOption
from shared.catalog.buckets import get_bucket
from shared.catalog.context import Catalogue
from shared.catalog.holds import place_hold, release_hold
from shared.catalog.models import Hold, HoldState, ObjectRow
from shared.core.errors import InvalidError

#: Characters, as over HTTP.
_MOST_REASON = 512

app = typer.Typer(help="Keep content that must not go.", no_args_is_help=True)

_COLUMNS = (
    *("id", "tenant_id", "key", "version_id", "state", "until", "reason"),
    *("created_by", "created_at", "ended_by", "ended_at"),
)


def _with_keys(session: Session, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ids = {row["object_id"] for row in rows}
    query = sa.select(ObjectRow.id, ObjectRow.key).where(ObjectRow.id.in_(ids))
    keys = {found.id: found.key for found in session.execute(query)}
    return [{**row, "key": keys.get(row["object_id"], "")} for row in rows]


add_list(
    app,
    Table(
        entity=Hold,
        columns=_COLUMNS,
        empty="no holds",
        states=HoldState,
        default_state=HoldState.ACTIVE,
        also=_with_keys,
    ),
    about="List holds, newest first: the active ones, or those in another state.",
)


@app.command()
def place(
    tenant: TenantArgument,
    bucket: BucketArgument,
    key: Annotated[str, typer.Argument(help="The key whose present content is to stay.")],
    reason: Annotated[str, typer.Option(help="Why; shown with the hold.")],
    until: Annotated[
        dt.datetime | None, typer.Option(help="When it ends by itself (UTC); default: never.")
    ] = None,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Hold what a key has now: its bytes stay, and the key cannot be deleted.

    Exits with 4 while the content is not stored yet.
    """
    if not 0 < len(reason) <= _MOST_REASON:
        raise InvalidError(f"a reason has 1 to {_MOST_REASON} characters")
    if until is not None and until.tzinfo is not None:
        until = until.astimezone(dt.UTC).replace(tzinfo=None)

    def begin(session: Session, _: Catalogue) -> dict[str, Any]:
        found = get_bucket(session, tenant, bucket)
        hold = place_hold(session, found.id, key, reason=reason, until=until, by=who())
        session.refresh(hold)
        return fields_of(hold)

    show_fields(change(directory, begin), output)


@app.command()
def release(
    hold_id: IdArgument,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """End a hold; content that nothing else needs goes after the grace."""

    def end(session: Session, catalogue: Catalogue) -> dict[str, Any]:
        return fields_of(release_hold(session, catalogue, hold_id, tenant_id=None, by=who()))

    show_fields(change(directory, end), output)
