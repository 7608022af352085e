"""`blox removals`: delete all keys with a prefix, watch it, stop it."""

from __future__ import annotations

import sys
import threading
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from services.cli.commands.common import (
    HERE,
    BucketArgument,
    IdArgument,
    ReasonOption,
    TenantArgument,
    change,
    fields_of,
    reading,
    who,
)
from services.cli.commands.listing import Table, add_bucket_list, add_bucket_show
from services.cli.render import Format, FormatOption, show_fields
from services.cli.stack import DirectoryOption, open_parts
from shared.catalog.buckets import get_bucket
from shared.catalog.context import Catalogue
from shared.catalog.models import Removal, RemovalState
from shared.catalog.removals import find_removal, start_removal
from shared.core.clock import Deadline
from shared.core.errors import ConflictError

app = typer.Typer(help="Delete all keys with a prefix.", no_args_is_help=True)

_COLUMNS = (
    *("id", "prefix", "is_dry_run", "state", "deleted_keys", "deleted_bytes", "held_keys"),
    *("newer_keys", "cursor", "created_by", "created_at", "ended_at"),
)
_LOOK_SECONDS = 0.5
_NOT_DONE = 1


add_bucket_list(
    app,
    Table(entity=Removal, columns=_COLUMNS, empty="no removals", states=RemovalState),
    Removal.bucket_id,
    about="List a bucket's removals, newest first.",
)
add_bucket_show(app, find_removal, about="Show how far a removal is.")


@app.command()
def start(
    tenant: TenantArgument,
    bucket: BucketArgument,
    prefix: Annotated[str, typer.Argument(help="All keys that begin so; '' for all keys.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    wait: Annotated[float, typer.Option(min=0.0, help="Seconds to watch it.")] = 0.0,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> int:
    """Delete what is there now; what is written later, or held, stays.

    With --wait it tells its progress on standard error, and exits with 1 unless it completed.
    """

    def begin(session: Session, catalogue: Catalogue) -> dict[str, Any]:
        found = get_bucket(session, tenant, bucket)
        begun = start_removal(
            session, catalogue, found, prefix=prefix, is_dry_run=dry_run, by=who()
        )
        return fields_of(begun)

    fields = change(directory, begin)
    if wait:
        with reading(directory) as session:
            fields = _watch(session, fields, Deadline(wait))
    show_fields(fields, output)
    return _NOT_DONE if wait and fields["state"] != RemovalState.COMPLETED else 0


@app.command()
def cancel(
    tenant: TenantArgument,
    bucket: BucketArgument,
    removal_id: IdArgument,
    reason: ReasonOption = "",
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Stop a removal; what is deleted stays deleted. `blox tasks retry` goes on with it."""
    with open_parts(directory) as parts:
        with Session(parts.engine) as session:
            found = find_removal(session, get_bucket(session, tenant, bucket).id, removal_id)
            state, task_id = found.state, found.task_id
        if state != RemovalState.RUNNING or task_id is None:
            raise ConflictError(f"the removal is {state}")
        answer = parts.outbox.cancel(task_id, by=who(), reason=reason)
    show_fields({"id": removal_id, "task_id": task_id, "state": str(answer.state)}, output)


def _watch(session: Session, fields: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
    told = None
    while fields["state"] == RemovalState.RUNNING and not deadline.expired():
        threading.Event().wait(min(_LOOK_SECONDS, deadline.remaining(_LOOK_SECONDS)))
        # A transaction of its own each time: one would see the same for ever.
        session.rollback()
        session.expire_all()
        fields = fields_of(session.get_one(Removal, fields["id"]))
        line = f"{fields['deleted_keys']:,} keys, {fields['deleted_bytes']:,} bytes"
        if line != told:
            sys.stderr.write(f"{line}, at {fields['cursor'] or ''!r}\n")
            told = line
    return fields
