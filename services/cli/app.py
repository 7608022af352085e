"""The command line: what there is, and which exit code an error becomes.

0 done, 1 failed, 2 wrong usage or settings, 3 not found, 4 conflict.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import typer

from services.cli.commands import basics, buckets, check, doctor, tasks
from shared.core.errors import (
    BloxError,
    ConflictError,
    InvalidError,
    NotFoundError,
)

FAILED, USAGE, NOT_FOUND, CONFLICT = 1, 2, 3, 4

app = typer.Typer(
    name="blox",
    help="Cloudblox: run the stack, look at its tasks, act on them, check it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("up")(basics.up)
app.command("demo")(basics.demo)
app.add_typer(basics.db, name="db")
app.command("secret-key")(basics.secret_key)
app.command("doctor")(doctor.doctor)
app.command("check")(check.check)
app.add_typer(tasks.app, name="tasks")
app.add_typer(buckets.app, name="buckets")


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors go to standard error as a sentence."""
    try:
        code = app(list(arguments), standalone_mode=False)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return FAILED
    except BloxError as error:
        sys.stderr.write(f"{error}\n")
        return _code_of(error)
    return code if isinstance(code, int) else 0


def _code_of(error: BloxError) -> int:
    if isinstance(error, NotFoundError):
        return NOT_FOUND
    if isinstance(error, ConflictError):
        return CONFLICT
    return USAGE if isinstance(error, InvalidError) else FAILED
