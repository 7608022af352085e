"""`blox channels`: places of bytes: list them, let them take bytes or not, what they refuse."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from services.cli.commands.common import (
    HERE,
    AfterOption,
    change,
    fields_of,
    reading,
)
from services.cli.commands.listing import DEFAULT_LIMIT, LimitOption
from services.cli.render import Format, FormatOption, show_fields, show_rows
from services.cli.stack import DirectoryOption
from shared.catalog.channels import list_channels, set_enabled
from shared.catalog.context import Catalogue
from shared.catalog.parked import count_parked, list_parked
from shared.catalog.replicas.status import channel_counts

app = typer.Typer(help="Look at channels, switch them on and off.", no_args_is_help=True)

ChannelArgument = Annotated[str, typer.Argument(help="The channel's name.")]
_COLUMNS = (
    *("name", "kind", "region", "is_enabled", "copies_pending", "copies_failed"),
    *("deletions_refused", "updated_at"),
)
_REFUSED = ("id", "channel", "key", "blob_id", "tries", "next_try_at", "error_detail")
#: What nobody is shown.
_HIDDEN = ("credentials",)


@app.command("list")
def list_(output: FormatOption = Format.TABLE, directory: DirectoryOption = HERE) -> None:
    """List channels with the copies and deletions that wait for them."""
    with reading(directory) as session:
        refused = count_parked(session)
        copies = {one.channel: one for one in channel_counts(session)}
        rows = []
        for record in list_channels(session):
            waiting = copies.get(record.name)
            rows.append(
                {
                    **fields_of(record, hidden=_HIDDEN),
                    "copies_pending": 0 if waiting is None else waiting.pending,
                    "copies_failed": 0 if waiting is None else waiting.failed,
                    "deletions_refused": refused.get(record.name, 0),
                }
            )
    show_rows(rows, _COLUMNS, output, empty="no channels")


@app.command()
def refusals(
    channel: Annotated[str | None, typer.Option(help="Only of this one.")] = None,
    after: AfterOption = 0,
    limit: LimitOption = DEFAULT_LIMIT,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """List deletions that channels refuse, with their next try."""
    with reading(directory) as session:
        found = list_parked(session, after=after, limit=limit, channel=channel)
        rows = [fields_of(row) for row in found]
    show_rows(rows, _REFUSED, output, empty="no channel refuses a deletion")


@app.command()
def on(
    name: ChannelArgument, output: FormatOption = Format.TABLE, directory: DirectoryOption = HERE
) -> None:
    """Let a channel take new bytes."""
    show_fields(change(directory, _switch(name, is_enabled=True)), output)


@app.command()
def off(
    name: ChannelArgument, output: FormatOption = Format.TABLE, directory: DirectoryOption = HERE
) -> None:
    """Let a channel take no new bytes; what it holds stays readable and deletable."""
    show_fields(change(directory, _switch(name, is_enabled=False)), output)


def _switch(name: str, *, is_enabled: bool) -> Any:
    def work(session: Session, _: Catalogue) -> dict[str, Any]:
        record = set_enabled(session, name, enabled=is_enabled)
        session.refresh(record)
        return fields_of(record, hidden=_HIDDEN)

    return work
