"""`blox reviews`: what waits for a person, and deciding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import sqlalchemy as sa
import typer
from sqlalchemy.orm import Session

from services.cli.commands.common import (
    DEFAULT_LIMIT,
    HERE,
    BeforeOption,
    IdArgument,
    LimitOption,
    ReasonOption,
    TenantOption,
    change,
    fields_of,
    newest,
    reading,
    show_page,
    who,
)
from services.cli.render import Format, FormatOption, show_fields, show_rows
from services.cli.stack import DirectoryOption
from shared.catalog.context import Catalogue
from shared.catalog.models import Review, ReviewState, ReviewStep
from shared.catalog.quarantine import destroy, release
from shared.catalog.reviewing import decide
from shared.core.errors import NotFoundError

app = typer.Typer(help="Look at reviews and decide them.", no_args_is_help=True)

_COLUMNS = (
    *("id", "tenant_id", "version_id", "state", "reason", "decided_by", "task_id"),
    *("deadline_at", "created_at", "decided_at"),
)


@app.command("list")
def list_(
    tenant: TenantOption = None,
    state: Annotated[
        ReviewState | None, typer.Option(help="`doubtful` are those that wait for a person.")
    ] = None,
    before: BeforeOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """List reviews, newest first."""
    where = []
    if tenant is not None:
        where.append(Review.tenant_id == tenant)
    if state is not None:
        where.append(Review.state == state)
    with reading(directory) as session:
        rows = newest(session, Review, *where, before=before, limit=limit)
    show_page(rows, _COLUMNS, output, limit=limit, empty="no reviews")


@app.command()
def show(
    review_id: IdArgument, output: FormatOption = Format.TABLE, directory: DirectoryOption = HERE
) -> None:
    """Show a review with what each reviewer said."""
    with reading(directory) as session:
        review = session.get(Review, review_id)
        if review is None:
            raise NotFoundError(f"there is no review {review_id}")
        query = sa.select(ReviewStep).where(ReviewStep.review_id == review_id)
        steps = [fields_of(step) for step in session.scalars(query.order_by(ReviewStep.id))]
        fields = fields_of(review)
    if output is Format.JSON:
        show_fields({**fields, "steps": steps}, output)
        return
    show_fields(fields, output)
    typer.echo("\nsteps")
    show_rows(steps, ("step", "outcome", "detail", "ended_at"), output, empty="none yet")


@app.command()
def approve(
    review_id: IdArgument,
    reason: ReasonOption = "",
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Let doubtful content pass; its upload begins."""
    _act(directory, review_id, reason, output, partial(decide, approve=True))


@app.command()
def reject(
    review_id: IdArgument,
    reason: ReasonOption = "",
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Block doubtful content; it goes into quarantine."""
    _act(directory, review_id, reason, output, partial(decide, approve=False))


@app.command("release")
def release_(
    review_id: IdArgument,
    reason: ReasonOption = "",
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Let blocked content pass after all, while its bytes are kept."""
    _act(directory, review_id, reason, output, release)


@app.command("destroy")
def destroy_(
    review_id: IdArgument,
    reason: ReasonOption = "",
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Remove the bytes of blocked content before their time.

    The clean-up takes the staged ones within its period.
    """
    _act(directory, review_id, reason, output, destroy)


def _act(
    directory: Path, review_id: int, reason: str, output: Format, act: Callable[..., object]
) -> None:
    def work(session: Session, catalogue: Catalogue) -> dict[str, Any]:
        act(session, catalogue, review_id, by=who(), reason=reason)
        review = session.get_one(Review, review_id)
        session.refresh(review)
        return fields_of(review)

    show_fields(change(directory, work), output)
