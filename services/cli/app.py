"""The command line: what there is, and which exit code an error becomes.

0 done, 1 failed, 2 wrong usage or settings, 3 not found, 4 conflict.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from services.cli.commands import (
    backups,
    basics,
    buckets,
    channels,
    check,
    doctor,
    holds,
    queues,
    regions,
    removals,
    replicas,
    restores,
    reviews,
    subscriptions,
    tasks,
    transfers,
)
from services.cli.sentences import EXPECTED, FAILED, exit_code, sentence


def _leave(code: int | None) -> None:
    """End with what a command returned."""
    raise typer.Exit(code or 0)


app = typer.Typer(
    name="blox",
    help="Cloudblox: run the stack, look at its tasks, act on them, check it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain text: it survives pipes, logs and narrow terminals.
    rich_markup_mode=None,
    result_callback=_leave,
)
app.command("up")(basics.up)
app.command("demo")(basics.demo)
app.add_typer(basics.db, name="db")
app.command("secret-key")(basics.secret_key)
app.command("doctor")(doctor.doctor)
app.command("check")(check.check)
app.add_typer(tasks.app, name="tasks")
app.add_typer(buckets.app, name="buckets")
app.add_typer(regions.app, name="regions")
app.command("queues")(queues.queues)
app.command("nodes")(queues.nodes)
app.add_typer(channels.app, name="channels")
app.add_typer(replicas.app, name="replicas")
app.add_typer(transfers.copies, name="copies")
app.add_typer(transfers.pulls, name="pulls")
app.add_typer(removals.app, name="removals")
app.add_typer(holds.app, name="holds")
app.add_typer(backups.app, name="backups")
app.add_typer(restores.app, name="restores")
restores.add_losses(app)
app.add_typer(reviews.app, name="reviews")
app.add_typer(subscriptions.app, name="subscriptions")


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors go to standard error as a sentence."""
    try:
        app(list(arguments), prog_name="blox")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else FAILED
    except EXPECTED as error:
        sys.stderr.write(f"{sentence(error)}\n")
        return exit_code(error)
    return 0
