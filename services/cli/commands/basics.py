"""`blox up`, `blox demo` and `blox db`: getting a stack to run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli.demo.run import run_demo
from services.cli.stack import DirectoryOption, stack_settings_variables
from services.cli.supervisor import python_environment
from services.cli.up import run_up
from shared.catalog.secret_box import SecretBox

db = typer.Typer(help="The database's schema.", no_args_is_help=True)


def up(directory: DirectoryOption = Path(".blox")) -> int:
    """Run the stack in this terminal until Ctrl-C.

    BLOX_DATABASE_URL, BLOX_REDIS_URL and BLOX_CHANNELS__* switch it to real servers.
    """
    return run_up(directory)


def demo(
    files: Annotated[list[Path] | None, typer.Argument(help="Files to put as well.")] = None,
    work_in: Annotated[
        Path | None, typer.Option(help="Folder for its 1.2 GB of data; default: the system's.")
    ] = None,
) -> int:
    """Put, kill, fail over, delete: the main job, judged.

    On a stack of its own, in less than two minutes. Everything it makes is removed again.
    """
    return run_demo(files or [], directory=work_in)


def secret_key() -> int:
    """Print a fresh BLOX_SECRET_KEY.

    It encrypts the credentials of channels at rest: the same for all processes of a deployment.
    """
    typer.echo(SecretBox.generate_key())
    return 0


@db.command("upgrade")
def upgrade(directory: DirectoryOption = Path(".blox")) -> int:
    """Bring the schema up to this version. Safe to repeat, and from many places at once."""
    done = subprocess.run(
        [sys.executable, "-m", "shared.migrations"],
        env=python_environment(stack_settings_variables(directory)),
        check=False,
    )
    return done.returncode
