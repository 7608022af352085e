"""`blox queues` and `blox nodes`: what waits where, and who works on it."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from services.cli.commands.common import HERE, reading
from services.cli.render import Format, FormatOption, show_rows
from services.cli.stack import DirectoryOption, open_parts
from shared.outbox.inspection import list_nodes
from shared.outbox.nodes import live_nodes
from shared.outbox.states import State
from shared.outbox.window import Place
from shared.runtime.statistics import count_tasks

_QUEUES = (
    *("queue", "region", "depth", "running", "failed", "retrying", "oldest_pending_seconds"),
    *("consumers", "threads"),
)
_NODES = ("node", "role", "region", "queues", "threads", "threads_busy", "version", "last_seen")


def queues(output: FormatOption = Format.TABLE, directory: DirectoryOption = HERE) -> None:
    """List every queue and region with its tasks by state and its consumers."""
    rows: dict[Place, dict[str, Any]] = {}

    def row(place: Place) -> dict[str, Any]:
        empty = dict.fromkeys(("depth", "running", "failed", "retrying"), 0)
        more = {"oldest_pending_seconds": 0.0, "tasks": {}, "consumers": 0, "threads": 0}
        return rows.setdefault(place, {**place._asdict(), **empty, **more})

    with open_parts(directory) as parts:
        context = parts.outbox.context
        for count in count_tasks(context.db):
            one = row(Place(count.queue, count.region))
            one["tasks"], one["depth"] = count.by_state, count.open
            one["running"] = count.by_state.get(State.RUNNING, 0)
            one["failed"] = count.by_state.get(State.FAILED, 0)
            one["retrying"] = count.retrying
            one["oldest_pending_seconds"] = round(count.oldest_pending_seconds, 1)
        for node in live_nodes(context):
            for name in node.queues:
                one = row(Place.of(name))
                one["consumers"] += 1
                one["threads"] += node.threads
    show_rows([rows[place] for place in sorted(rows)], _QUEUES, output, empty="no queues")


def nodes(output: FormatOption = Format.TABLE, directory: DirectoryOption = HERE) -> None:
    """List the processes, also those that were seen lately only."""
    session: Session
    with reading(directory) as session:
        rows = [dict(row) for row in list_nodes(session)]
    show_rows(rows, _NODES, output, empty="no processes")
