"""`blox copies` and `blox pulls`: copies over channels, and what is fetched from origins."""

from __future__ import annotations

from typing import Annotated, Any

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
    change,
    fields_of,
    newest,
    reading,
    show_page,
)
from services.cli.render import Format, FormatOption, show_fields
from services.cli.stack import DirectoryOption
from shared.catalog.buckets import get_bucket
from shared.catalog.context import Catalogue
from shared.catalog.limits import check_key
from shared.catalog.models import Copy, CopyState, OriginPull, PullState
from shared.catalog.origins.pulling import NothingToPull, begin_pull, get_pull, rule_of
from shared.core.errors import ConflictError

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


@copies.command("list")
def list_copies(
    tenant: TenantArgument,
    bucket: BucketArgument,
    state: Annotated[CopyState | None, typer.Option(help="Only those.")] = None,
    before: BeforeOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """List copies and moves into a bucket that needed a task, newest first."""
    with reading(directory) as session:
        where = [Copy.target_bucket_id == get_bucket(session, tenant, bucket).id]
        if state is not None:
            where.append(Copy.state == state)
        rows = newest(session, Copy, *where, before=before, limit=limit)
    show_page(rows, _COPIES, output, limit=limit, empty="no copies")


@pulls.command("list")
def list_pulls(
    tenant: TenantArgument,
    bucket: BucketArgument,
    state: Annotated[PullState | None, typer.Option(help="Only those.")] = None,
    before: BeforeOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """List a bucket's pulls, newest first; those that ended are kept for a week."""
    with reading(directory) as session:
        where = [OriginPull.bucket_id == get_bucket(session, tenant, bucket).id]
        if state is not None:
            where.append(OriginPull.state == state)
        rows = newest(session, OriginPull, *where, before=before, limit=limit)
    show_page(rows, _PULLS, output, limit=limit, empty="no pulls")


@pulls.command("show")
def show_pull(
    tenant: TenantArgument,
    bucket: BucketArgument,
    pull_id: IdArgument,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Show a pull with the connections that it made."""
    with reading(directory) as session:
        fields = fields_of(get_pull(session, get_bucket(session, tenant, bucket).id, pull_id))
    show_fields(fields, output)


@pulls.command("start")
def start_pull(
    tenant: TenantArgument,
    bucket: BucketArgument,
    key: Annotated[str, typer.Argument(help="The key that is absent.")],
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Fetch an absent key now; exits with 4 when it is there, or no rule counts for it."""
    check_key(key)

    def begin(session: Session, catalogue: Catalogue) -> dict[str, Any]:
        catalogue.need("origin")
        found = get_bucket(session, tenant, bucket)
        rule = rule_of(found, key)
        if rule is None:
            raise ConflictError("no rule of the bucket counts for this key", code="origin_no_rule")
        begun = begin_pull(session, catalogue, found, key, rule, is_asked_for=True)
        if isinstance(begun, NothingToPull):
            raise ConflictError(f"the object is {begun.reason}", code="object_exists")
        pull = get_pull(session, found.id, begun.pull_id)
        session.refresh(pull)
        return fields_of(pull)

    show_fields(change(directory, begin), output)
