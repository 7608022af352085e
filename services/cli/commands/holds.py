"""`blox holds`: content that must stay: list, place and release holds."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

import sqlalchemy as sa
import typer
from sqlalchemy.orm import Session

from services.cli.commands.common import (
    DEFAULT_LIMIT,
    HERE,
    BeforeOption,
    BucketArgument,
    IdArgument,
    LimitOption,
    TenantArgument,
    TenantOption,
    change,
    fields_of,
    newest,
    reading,
    show_page,
    who,
)
from services.cli.render import Format, FormatOption, show_fields
from services.cli.stack import DirectoryOption
from shared.catalog.buckets import get_bucket
from shared.catalog.context import Catalogue
from shared.catalog.holds import place_hold, release_hold
from shared.catalog.models import Hold, HoldState, ObjectRow

app = typer.Typer(help="Keep content that must not go.", no_args_is_help=True)

_COLUMNS = (
    *("id", "tenant_id", "key", "version_id", "state", "until", "reason"),
    *("created_by", "created_at", "ended_by", "ended_at"),
)


@app.command("list")
def list_(
    tenant: TenantOption = None,
    state: Annotated[HoldState, typer.Option(help="Those in this state.")] = HoldState.ACTIVE,
    before: BeforeOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """List holds, newest first."""
    where = [Hold.state == state]
    if tenant is not None:
        where.append(Hold.tenant_id == tenant)
    with reading(directory) as session:
        rows = newest(session, Hold, *where, before=before, limit=limit)
        ids = {row["object_id"] for row in rows}
        query = sa.select(ObjectRow.id, ObjectRow.key).where(ObjectRow.id.in_(ids))
        keys = {found.id: found.key for found in session.execute(query)}
    rows = [{**row, "key": keys.get(row["object_id"], "")} for row in rows]
    show_page(rows, _COLUMNS, output, limit=limit, empty="no holds")


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
