"""`blox backups`: start, watch, cancel and drop a bucket's backups."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from services.cli.commands.common import (
    HERE,
    AfterOption,
    BucketArgument,
    IdArgument,
    TenantArgument,
    change,
    fields_of,
    reading,
)
from services.cli.commands.listing import (
    DEFAULT_LIMIT,
    LimitOption,
    Table,
    add_bucket_action,
    add_bucket_list,
    add_bucket_show,
)
from services.cli.render import Format, FormatOption, show_fields, show_rows
from services.cli.stack import DirectoryOption
from shared.catalog.backups.listing import list_items
from shared.catalog.backups.retention import prune_run
from shared.catalog.backups.runs import cancel_run, enqueue_prune, manual_slot, open_run
from shared.catalog.buckets import get_bucket
from shared.catalog.context import Catalogue
from shared.catalog.models import BackupItemState, BackupRun, BackupRunState
from shared.core.errors import NotFoundError

app = typer.Typer(help="Back buckets up.", no_args_is_help=True)

_COLUMNS = (
    *("id", "target", "slot", "state", "counts", "task_id", "error_code"),
    *("created_at", "ended_at"),
)


def _of(session: Session, bucket_id: int, run_id: int) -> BackupRun:
    run = session.get(BackupRun, run_id)
    if run is None or run.bucket_id != bucket_id:
        raise NotFoundError(f"the bucket has no backup {run_id}")
    return run


add_bucket_list(
    app,
    Table(entity=BackupRun, columns=_COLUMNS, empty="no backups", states=BackupRunState),
    BackupRun.bucket_id,
    about="List a bucket's backups, newest first; only complete ones can be restored from.",
)
add_bucket_show(app, _of, about="Show a backup with its counts.")


@app.command()
def start(
    tenant: TenantArgument,
    bucket: BucketArgument,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Back a bucket up now, by its rule; exits with 4 while another backup of it is open."""

    def begin(session: Session, catalogue: Catalogue) -> dict[str, Any]:
        catalogue.need("backup")
        found = get_bucket(session, tenant, bucket)
        return fields_of(open_run(session, catalogue, found.id, slot=manual_slot()))

    show_fields(change(directory, begin), output)


add_bucket_action(
    app,
    "cancel",
    _of,
    cancel_run,
    about="Stop an open backup; the next one finds what it has copied.",
)


@app.command()
def items(
    tenant: TenantArgument,
    bucket: BucketArgument,
    run_id: IdArgument,
    state: Annotated[
        BackupItemState | None, typer.Option(help="Only those: a backup lacks `lost` and `failed`.")
    ] = None,
    after: AfterOption = 0,
    limit: LimitOption = DEFAULT_LIMIT,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """List a backup's contents with some of their keys, until the backup is dropped."""
    with reading(directory) as session:
        run = _of(session, get_bucket(session, tenant, bucket).id, run_id)
        found = list_items(session, run, state=state, after=after, limit=limit)
        rows = [asdict(item) for item in found]
    columns = ("id", "keys", "state", "size_bytes", "error_code", "task_id", "ended_at")
    show_rows(rows, columns, output, empty="no contents")
    if output is Format.TABLE and len(rows) == limit:
        typer.echo(f"more: --after {rows[-1]['id']}")


@app.command()
def drop(
    tenant: TenantArgument,
    bucket: BucketArgument,
    run_id: IdArgument,
    directory: DirectoryOption = HERE,
) -> None:
    """Drop a complete backup; what only it names goes after the rule's grace."""

    def work(session: Session, catalogue: Catalogue) -> None:
        catalogue.need("backup")
        run = _of(session, get_bucket(session, tenant, bucket).id, run_id)
        prune_run(session, run.id)
        enqueue_prune(
            session,
            catalogue,
            tenant_id=run.tenant_id,
            bucket_id=run.bucket_id,
            target=run.target,
        )

    change(directory, work)
