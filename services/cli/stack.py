"""How a command finds its stack: the environment, else the embedded one's folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from services.cli.embedded import Layout, stack_variables
from shared.core.errors import InvalidError, UnavailableError
from shared.runtime.assembly import Parts, assemble
from shared.runtime.metrics import Metrics
from shared.runtime.problems import problems
from shared.runtime.schema import schema_fault
from shared.runtime.settings import Settings, load_settings, own_variables

DirectoryOption = Annotated[
    Path, typer.Option("--directory", "-d", help="Folder of the embedded stack.")
]
_PORT = re.compile(r"^port (\d+)$", re.MULTILINE)


def stack_settings_variables(directory: Path) -> dict[str, str]:
    """Return the `BLOX_*` of the stack that is meant.

    With `BLOX_DATABASE_URL` set that is the environment's, without it the embedded one's in
    `directory`.
    """
    given = own_variables()
    if "BLOX_DATABASE_URL" in given:
        return given
    layout = Layout(directory)
    if not layout.database.exists():
        raise InvalidError(
            f"there is no stack in {directory} (blox up makes one), "
            "and BLOX_DATABASE_URL does not name a database"
        )
    redis_url = given.get("BLOX_REDIS_URL") or _redis_url(layout)
    return stack_variables(layout, given, redis_url=redis_url, is_for_people=False)


def stack_settings(directory: Path) -> Settings:
    """Return the settings of the stack that is meant; InvalidError when they cannot be used."""
    settings = load_settings(stack_settings_variables(directory))
    found = problems(settings)
    if found.errors:
        raise InvalidError("\n".join(found.errors))
    return settings


@contextmanager
def open_parts(directory: Path) -> Iterator[Parts]:
    """Open the stack's database, outbox and channels; UnavailableError when the schema is wrong."""
    settings = stack_settings(directory)
    parts = assemble(settings, Metrics("cli"), threads=2)
    try:
        fault = schema_fault(parts.engine)
        if fault is not None:
            raise UnavailableError(fault)
        yield parts
    finally:
        parts.outbox.close(2.0)
        parts.engine.dispose()


def _redis_url(layout: Layout) -> str:
    configuration = layout.redis / "redis.conf"
    found = _PORT.search(configuration.read_text()) if configuration.exists() else None
    port = found.group(1) if found else "6379"
    return f"redis://:{layout.redis_password()}@127.0.0.1:{port}/0"
