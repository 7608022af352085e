"""`blox replicas`: copies on other channels: what waits, what failed, how far a bucket is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from services.cli.commands.common import (
    HERE,
    AfterOption,
    BucketArgument,
    TenantArgument,
    TenantOption,
    fields_of,
    reading,
)
from services.cli.commands.listing import DEFAULT_LIMIT, LimitOption
from services.cli.render import Format, FormatOption, show_rows
from services.cli.stack import DirectoryOption
from shared.catalog.buckets import get_bucket
from shared.catalog.models import ReplicaState
from shared.catalog.replicas.status import audits, list_replicas, rule_status

app = typer.Typer(help="Look at copies on other channels.", no_args_is_help=True)

_COLUMNS = (
    *("id", "tenant_id", "blob_id", "channel", "state", "reason", "attempts", "next_try_at"),
    *("task_id", "error_code", "created_at"),
)
_RULES = ("channel", "state", "missing", "pending", "failed", "oldest_pending_at", "compared_at")
_AUDITS = ("channel", "checked", "lost", "suspects", "error_detail", "turned_at", "passed_at")


@app.command("list")
def list_(
    tenant: TenantOption = None,
    state: Annotated[
        ReplicaState | None, typer.Option(help="Those in this state; else pending and failed.")
    ] = None,
    channel: Annotated[str | None, typer.Option(help="Only on this channel.")] = None,
    after: AfterOption = 0,
    limit: LimitOption = DEFAULT_LIMIT,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """List copies that wait or have failed, oldest first; `blox tasks retry` tries one again."""
    with reading(directory) as session:
        lines = list_replicas(
            session, tenant, state=state, channel=channel, after=after, limit=limit
        )
        rows = [
            {
                **fields_of(line.replica),
                "size_bytes": line.size_bytes,
                "attempts": line.attempts,
                "next_try_at": line.next_try_at,
            }
            for line in lines
        ]
    show_rows(rows, _COLUMNS, output, empty="no copies wait, none has failed")
    if output is Format.TABLE and len(rows) == limit:
        typer.echo(f"more: --after {rows[-1]['id']}")


@app.command()
def rules(
    tenant: TenantArgument,
    bucket: BucketArgument,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Show each rule of a bucket with what is missing, waits and has failed."""
    with reading(directory) as session:
        found = rule_status(session, get_bucket(session, tenant, bucket))
    show_rows([asdict(one) for one in found], _RULES, output, empty="the bucket has no rules")


@app.command("audits")
def audits_(output: FormatOption = Format.TABLE, directory: DirectoryOption = HERE) -> None:
    """Show how far each channel was compared with what it should hold."""
    with reading(directory) as session:
        rows = [{**fields_of(row), "suspects": len(row.suspects or {})} for row in audits(session)]
    show_rows(rows, _AUDITS, output, empty="no channel was looked at yet")
