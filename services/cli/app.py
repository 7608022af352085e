"""The command line: what there is, and which exit code an error becomes.

0 done, 1 failed, 2 wrong usage or settings, 3 not found, 4 conflict.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from services.cli.commands import basics, buckets, check, doctor, regions, tasks
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
