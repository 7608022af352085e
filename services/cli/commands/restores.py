"""`blox restores` and `blox losses`: bring keys back, and see what is lost."""

from __future__ import annotations

import datetime as dt
from enum import StrEnum
from typing import Annotated, Any

import pydantic
import sqlalchemy as sa
import typer
from sqlalchemy.orm import Session

from services.cli.commands.common import (
    HERE,
    MAX_ID,
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
    add_list,
)
from services.cli.render import Format, FormatOption, show_fields, show_rows
from services.cli.stack import DirectoryOption
from shared.catalog.buckets import get_bucket
from shared.catalog.context import Catalogue
from shared.catalog.models import Loss, LossState, Restore, RestoreItem, RestoreState
from shared.catalog.restores.runs import RestoreSpec, cancel_restore, open_restore
from shared.core.errors import InvalidError, NotFoundError

app = typer.Typer(help="Bring keys back from backups.", no_args_is_help=True)

_COLUMNS = (
    *("id", "mode", "prefix", "at", "policy", "is_dry_run", "run_id", "state", "counts"),
    *("error_code", "created_at", "ended_at"),
)
_LOSS_COLUMNS = (
    *("id", "tenant_id", "blob_id", "channel", "state", "found_by", "restored_from"),
    *("error_code", "created_at", "ended_at"),
)


class Mode(StrEnum):
    """What is restored."""

    KEYS = "keys"
    CONTENT = "content"


class Overwrite(StrEnum):
    """What becomes of a key that is there."""

    NEVER = "never"
    IF_NEWER = "if-newer"
    ALWAYS = "always"


def _of(session: Session, bucket_id: int, restore_id: int) -> Restore:
    restore = session.get(Restore, restore_id)
    if restore is None or restore.bucket_id != bucket_id:
        raise NotFoundError(f"the bucket has no restore {restore_id}")
    return restore


add_bucket_list(
    app,
    Table(entity=Restore, columns=_COLUMNS, empty="no restores", states=RestoreState),
    Restore.bucket_id,
    about="List a bucket's restores, newest first.",
)
add_bucket_show(app, _of, about="Show how far a restore is, with counts and bytes by outcome.")


@app.command()
def items(
    tenant: TenantArgument,
    bucket: BucketArgument,
    restore_id: IdArgument,
    outcome: Annotated[str | None, typer.Option(help="Only those, as `unrecoverable`.")] = None,
    after: AfterOption = 0,
    limit: LimitOption = DEFAULT_LIMIT,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """List what became of each key; a dry run keeps none."""
    with reading(directory) as session:
        restore = _of(session, get_bucket(session, tenant, bucket).id, restore_id)
        query = sa.select(RestoreItem).where(
            RestoreItem.restore_id == restore.id, RestoreItem.id > after
        )
        if outcome is not None:
            query = query.where(RestoreItem.outcome == outcome)
        found = session.scalars(query.order_by(RestoreItem.id).limit(limit))
        rows = [fields_of(row) for row in found]
    columns = ("id", "key", "outcome", "size_bytes", "version_id", "detail")
    show_rows(rows, columns, output, empty="no keys")
    if output is Format.TABLE and len(rows) == limit:
        typer.echo(f"more: --after {rows[-1]['id']}")


@app.command()
def start(
    tenant: TenantArgument,
    bucket: BucketArgument,
    prefix: Annotated[str, typer.Option(help="Only keys that begin so.")] = "",
    mode: Annotated[
        Mode, typer.Option(help="`content`: keep the keys, bring back bytes that are lost.")
    ] = Mode.KEYS,
    at: Annotated[
        dt.datetime | None, typer.Option(help="A point in time (UTC); default: the newest backup.")
    ] = None,
    run: Annotated[
        int | None, typer.Option(min=1, max=MAX_ID, help="A backup's id, in place of --at.")
    ] = None,
    overwrite: Annotated[
        Overwrite, typer.Option(help="Keys that are there now.")
    ] = Overwrite.NEVER,
    deep: Annotated[
        bool, typer.Option("--deep", help="`content`: read every copy and compare its SHA-256.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count keys and bytes.")] = False,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Bring keys back; each that comes back is a new version, and nothing is deleted."""
    if at is not None and at.tzinfo is not None:
        at = at.astimezone(dt.UTC).replace(tzinfo=None)
    try:
        spec = RestoreSpec(
            mode=mode.value,
            prefix=prefix,
            at=at,
            run=run,
            policy=overwrite.value,
            deep=deep,
            dry_run=dry_run,
        )
    except pydantic.ValidationError as error:
        raise InvalidError("; ".join(fault["msg"] for fault in error.errors())) from error

    def begin(session: Session, catalogue: Catalogue) -> dict[str, Any]:
        catalogue.need("restore")
        found = get_bucket(session, tenant, bucket)
        return fields_of(open_restore(session, catalogue, found, spec, at=at))

    show_fields(change(directory, begin), output)


add_bucket_action(
    app, "cancel", _of, cancel_restore, about="Stop a restore; what it has restored stays."
)


def add_losses(root: typer.Typer) -> None:
    """Add the list of what is lost."""
    add_list(
        root,
        Table(entity=Loss, columns=_LOSS_COLUMNS, empty="nothing is lost", states=LossState),
        about="List copies that were found missing or damaged, newest first.",
        name="losses",
    )
