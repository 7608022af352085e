"""`blox regions`: list them, drain one, open it again."""

from __future__ import annotations

import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.orm import Session

from services.cli.render import Format, FormatOption, show_fields, show_rows
from services.cli.stack import DirectoryOption, open_parts
from shared.catalog.draining import move_waiting
from shared.catalog.regions import BASE, drain, list_regions, reopen, unconsumed_queues
from shared.core.clock import Deadline
from shared.outbox.nodes import live_nodes
from shared.outbox.window import Place

app = typer.Typer(help="Look at regions, drain and open them.", no_args_is_help=True)

_HERE = Path(".blox")
_COLUMNS = ("region", "consumers", "buckets", "drained_to")
#: Seconds that one round of moving takes at most.
_ROUND_SECONDS = 5.0
#: Seconds between two looks at what still runs.
_LOOK_SECONDS = 0.5
_NOT_OVER = 1

RegionName = Annotated[str, typer.Argument(help="The region's name.")]


@app.command("list")
def list_(output: FormatOption = Format.TABLE, directory: DirectoryOption = _HERE) -> None:
    """List the regions that buckets, consumers or drains name."""
    with open_parts(directory) as parts:
        consumers: dict[str, int] = {}
        for node in live_nodes(parts.outbox.context):
            for region in {Place.of(name).region for name in node.queues}:
                consumers[region] = consumers.get(region, 0) + 1
        with Session(parts.engine) as session:
            states = {state.name: state for state in list_regions(session)}
    rows = [
        {
            "region": name,
            "consumers": consumers.get(name, 0),
            "buckets": states[name].buckets if name in states else 0,
            "drained_to": _said(states[name].drained_to) if name in states else None,
        }
        for name in sorted({*states, *filter(None, consumers)})
    ]
    show_rows(rows, _COLUMNS, output, empty="no regions: all work is in the base queues")


@app.command("drain")
def drain_(
    region: RegionName,
    to: Annotated[str, typer.Option(help="Where its work goes; default: the base queues.")] = BASE,
    wait: Annotated[float, typer.Option(help="Seconds to wait for what still runs.")] = 60.0,
    force: Annotated[
        bool, typer.Option("--force", help="Also where nobody consumes what this region does.")
    ] = False,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = _HERE,
) -> int:
    """Send new work elsewhere and move what waits; exit 1 while something still runs there.

    Until `blox regions reopen` the region gets no new work. Safe to repeat. Exits with 4 where
    nobody would consume that work.
    """
    deadline = Deadline(wait)
    with open_parts(directory) as parts:
        parts.outbox.context.db.run_session(
            lambda session: drain(session, region, to=to, force=force)
        )
        state = move_waiting(
            parts.outbox.context, region, to=to, deadline=Deadline(max(wait, _ROUND_SECONDS))
        )
        moved = state.moved
        while not state.is_over and not deadline.expired():
            threading.Event().wait(_LOOK_SECONDS)
            state = move_waiting(
                parts.outbox.context, region, to=to, deadline=Deadline(_ROUND_SECONDS)
            )
            moved += state.moved
    show_fields({"region": region, "to": _said(to), **asdict(state), "moved": moved}, output)
    if state.is_over:
        return 0
    sys.stderr.write(
        f"region {region} is not drained: {state.running} tasks run, {state.waiting} wait; "
        "leave its workers and repeat the command\n"
    )
    return _NOT_OVER


@app.command("reopen")
def reopen_(region: RegionName, directory: DirectoryOption = _HERE) -> None:
    """Let a drained region have its new work again; warns where nobody would do it."""
    with open_parts(directory) as parts:
        db = parts.outbox.context.db
        db.run_session(lambda session: reopen(session, region))
        missing = db.run_session(
            lambda session: unconsumed_queues(session, region, like=BASE), read_only=True
        )
    if missing != []:
        what = "anything" if missing is None else ", ".join(missing)
        sys.stderr.write(
            f"nobody consumes {what} in region {region} now: its work waits, unless its buckets "
            "allow the base queues\n"
        )


def _said(region: str | None) -> str | None:
    return "(base)" if region == BASE else region
