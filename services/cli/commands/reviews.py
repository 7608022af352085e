"""`blox reviews`: what waits for a person, and deciding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import sqlalchemy as sa
import typer
from sqlalchemy.orm import Session

from services.cli.commands.common import (
    HERE,
    IdArgument,
    ReasonOption,
    change,
    fields_of,
    reading,
    who,
)
from services.cli.commands.listing import Table, add_list
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


add_list(
    app,
    Table(entity=Review, columns=_COLUMNS, empty="no reviews", states=ReviewState),
    about="List reviews, newest first; `--state doubtful` are those that wait for a person.",
)


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


def _add(name: str, act: Callable[..., object], about: str) -> None:
    @app.command(name, help=about)
    def run(
        review_id: IdArgument,
        reason: ReasonOption = "",
        output: FormatOption = Format.TABLE,
        directory: DirectoryOption = HERE,
    ) -> None:
        def work(session: Session, catalogue: Catalogue) -> dict[str, Any]:
            act(session, catalogue, review_id, by=who(), reason=reason)
            review = session.get_one(Review, review_id)
            session.refresh(review)
            return fields_of(review)

        show_fields(change(directory, work), output)


_add("approve", partial(decide, approve=True), "Let doubtful content pass; its upload begins.")
_add("reject", partial(decide, approve=False), "Block doubtful content; it goes into quarantine.")
_add("release", release, "Let blocked content pass after all, while its bytes are kept.")
# Bytes in staging are left to the clean-up.
_add("destroy", destroy, "Remove the bytes of blocked content before their time.")
