"""`blox tasks`: list, show, cancel, retry. Acts on the database, so it works where no API runs."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from services.cli.commands.common import who
from services.cli.render import Format, FormatOption, show_fields, show_json, show_rows
from services.cli.stack import DirectoryOption, open_parts
from shared.catalog.retries import need_service
from shared.core.errors import ConflictError, NotFoundError
from shared.outbox.inspection import TaskDetail, TaskFilter, list_tasks, show_task
from shared.outbox.states import State

app = typer.Typer(help="Look at tasks and act on them.", no_args_is_help=True)

TaskId = Annotated[int, typer.Argument(help="The task's id.", min=1)]
Reason = Annotated[str, typer.Option(help="Why; kept in the audit trail.")]
_HERE = Path(".blox")
_BRIEF = (
    *("id", "tenant_id", "kind", "state", "attempt", "error_code", "resource_key"),
    *("created_at", "finished_at"),
)


@app.command("list")
def list_(
    state: Annotated[State | None, typer.Option(help="Only tasks in this state.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only this queue.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only this kind.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    since: Annotated[
        dt.datetime | None, typer.Option(help="Created at or after this time (UTC).")
    ] = None,
    before: Annotated[int | None, typer.Option(help="Only ids below this: the next page.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = _HERE,
) -> None:
    """List tasks, newest first."""
    if since is not None and since.tzinfo is not None:
        since = since.astimezone(dt.UTC).replace(tzinfo=None)
    wanted = TaskFilter(state=state, queue=queue, kind=kind, tenant_id=tenant, since=since)
    with open_parts(directory) as parts, _reading(parts.engine) as session:
        page = list_tasks(session, wanted, before=before, limit=limit)
    show_rows(page.items, _BRIEF, output, empty="no tasks")
    if output is Format.TABLE and page.next_before is not None:
        typer.echo(f"more: --before {page.next_before}")


@app.command()
def show(
    task_id: TaskId, output: FormatOption = Format.TABLE, directory: DirectoryOption = _HERE
) -> None:
    """Show one task with its attempts and events."""
    with open_parts(directory) as parts, _reading(parts.engine) as session:
        detail = show_task(session, task_id)
    if detail is None:
        raise NotFoundError(f"there is no task {task_id}")
    if output is Format.JSON:
        show_json(_as_json(detail))
        return
    show_fields(dict(detail.task), output)
    if detail.attempts:
        typer.echo("\nattempts that were not a plain success")
        columns = ("attempt", "outcome", "error_code", "error_detail", "owner", "ended_at")
        show_rows(detail.attempts, columns, output, empty="")
    if detail.events:
        typer.echo("\nevents")
        show_rows(detail.events, ("created_at", "type", "data"), output, empty="")


@app.command()
def cancel(
    task_id: TaskId,
    reason: Reason = "",
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = _HERE,
) -> None:
    """Cancel a task; it never completes afterwards.

    One that waits is cancelled at once, one that runs is asked to stop. Exits with 4 for a task
    that has ended otherwise.
    """
    with open_parts(directory) as parts:
        answer = parts.outbox.cancel(task_id, by=who(), reason=reason)
    if answer.state in (State.COMPLETED, State.FAILED):
        raise ConflictError(f"the task is {answer.state}")
    show_fields({"id": task_id, "state": str(answer.state)}, output)


@app.command()
def retry(
    task_id: TaskId,
    reason: Reason = "",
    force: Annotated[
        bool, typer.Option("--force", help="Run even a completed task again.")
    ] = False,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = _HERE,
) -> None:
    """Run a failed or cancelled task again.

    It goes on from its checkpoint. Exits with 4 for a task that has not ended, or was superseded,
    and refuses one whose service is switched off: nobody would take it.
    """
    with open_parts(directory) as parts:
        with _reading(parts.engine) as session:
            need_service(session, parts.catalogue, task_id)
        state = parts.outbox.retry(task_id, by=who(), reason=reason, force=force)
    show_fields({"id": task_id, "state": state}, output)


def _reading(engine: Any) -> Session:
    return Session(engine.execution_options(read_only=True))


def _as_json(detail: TaskDetail) -> dict[str, Any]:
    return {
        **dict(detail.task),
        "attempts": [dict(row) for row in detail.attempts],
        "events": [dict(row) for row in detail.events],
    }
