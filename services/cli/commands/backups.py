"""`blox backups`: start, watch, cancel and drop a bucket's backups."""

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
from shared.catalog.backups.retention import prune_run
from shared.catalog.backups.runs import cancel_run, enqueue_prune, manual_slot, open_run
from shared.catalog.buckets import get_bucket
from shared.catalog.context import Catalogue
from shared.catalog.models import BackupRun, BackupRunState
from shared.core.errors import NotFoundError

app = typer.Typer(help="Back buckets up.", no_args_is_help=True)

_COLUMNS = (
    *("id", "target", "slot", "state", "counts", "task_id", "error_code"),
    *("created_at", "ended_at"),
)


@app.command("list")
def list_(
    tenant: TenantArgument,
    bucket: BucketArgument,
    state: Annotated[BackupRunState | None, typer.Option(help="Only those.")] = None,
    before: BeforeOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """List a bucket's backups, newest first; only complete ones can be restored from."""
    with reading(directory) as session:
        where = [BackupRun.bucket_id == get_bucket(session, tenant, bucket).id]
        if state is not None:
            where.append(BackupRun.state == state)
        rows = newest(session, BackupRun, *where, before=before, limit=limit)
    show_page(rows, _COLUMNS, output, limit=limit, empty="no backups")


@app.command()
def show(
    tenant: TenantArgument,
    bucket: BucketArgument,
    run_id: IdArgument,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Show a backup with its counts."""
    with reading(directory) as session:
        fields = fields_of(_find(session, tenant, bucket, run_id))
    show_fields(fields, output)


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


@app.command()
def cancel(
    tenant: TenantArgument,
    bucket: BucketArgument,
    run_id: IdArgument,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Stop an open backup; the next one finds what it has copied."""

    def end(session: Session, catalogue: Catalogue) -> dict[str, Any]:
        return fields_of(cancel_run(session, catalogue, _find(session, tenant, bucket, run_id)))

    show_fields(change(directory, end), output)


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
        run = _find(session, tenant, bucket, run_id)
        prune_run(session, run.id)
        enqueue_prune(
            session,
            catalogue,
            tenant_id=run.tenant_id,
            bucket_id=run.bucket_id,
            target=run.target,
        )

    change(directory, work)


def _find(session: Session, tenant: str, bucket: str, run_id: int) -> BackupRun:
    found = get_bucket(session, tenant, bucket)
    run = session.get(BackupRun, run_id)
    if run is None or run.bucket_id != found.id:
        raise NotFoundError(f"the bucket has no backup {run_id}")
    return run
