"""`blox copies` and `blox pulls`: copies over channels, and what is fetched from origins."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from services.cli.commands.common import (
    HERE,
    BucketArgument,
    TenantArgument,
    change,
    fields_of,
)
from services.cli.commands.listing import Table, add_bucket_list, add_bucket_show
from services.cli.render import Format, FormatOption, show_fields
from services.cli.stack import DirectoryOption
from shared.catalog.buckets import get_bucket
from shared.catalog.context import Catalogue
from shared.catalog.models import Copy, CopyState, OriginPull, PullState
from shared.catalog.object_copies import find_copy
from shared.catalog.origins.pulling import get_pull, pull_now

copies = typer.Typer(help="Look at copies over channels.", no_args_is_help=True)
pulls = typer.Typer(help="Fetch absent keys from origins.", no_args_is_help=True)

_COPIES = (
    *("id", "target_key", "is_move", "state", "source_version_id", "version_id", "task_id"),
    *("error_code", "created_at", "ended_at"),
)
_PULLS = (
    *("id", "key", "rule", "state", "received_bytes", "version_id", "task_id", "error_code"),
    *("created_at", "ended_at"),
)


add_bucket_list(
    copies,
    Table(entity=Copy, columns=_COPIES, empty="no copies", states=CopyState),
    Copy.target_bucket_id,
    about="List copies and moves into a bucket that needed a task, newest first.",
)
add_bucket_show(copies, find_copy, about="Show a copy or move that needed a task.")
add_bucket_list(
    pulls,
    Table(entity=OriginPull, columns=_PULLS, empty="no pulls", states=PullState),
    OriginPull.bucket_id,
    about="List a bucket's pulls, newest first; those that ended are kept for a week.",
)
add_bucket_show(pulls, get_pull, about="Show a pull with the connections that it made.")


@pulls.command("start")
def start_pull(
    tenant: TenantArgument,
    bucket: BucketArgument,
    key: Annotated[str, typer.Argument(help="The key that is absent.")],
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Fetch an absent key now; exits with 4 when it is there, or no rule counts for it."""

    def begin(session: Session, catalogue: Catalogue) -> dict[str, Any]:
        return fields_of(pull_now(session, catalogue, get_bucket(session, tenant, bucket), key))

    show_fields(change(directory, begin), output)
