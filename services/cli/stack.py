"""How a command finds its stack: the environment, else the embedded one's folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import sqlalchemy as sa
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
            f"there is no stack in {directory}: `blox up` makes one, --directory names another "
            "folder, BLOX_DATABASE_URL a database"
        )
    redis_url = given.get("BLOX_REDIS_URL") or _redis_url(layout)
    return stack_variables(layout, given, redis_url=redis_url, is_for_people=False)


def stack_settings(directory: Path) -> Settings:
    """Return the settings of the stack that is meant; SettingsError when they cannot be used."""
    settings = load_settings(stack_settings_variables(directory))
    problems(settings).refuse()
    return settings


@contextmanager
def open_parts(directory: Path) -> Iterator[Parts]:
    """Open the stack's database, outbox and channels; UnavailableError when the schema is wrong."""
    settings = stack_settings(directory)
    if (missing := missing_file(settings)) is not None:
        raise UnavailableError(missing)
    parts = assemble(settings, Metrics("cli"), threads=2)
    try:
        fault = schema_fault(parts.engine)
        if fault is not None:
            raise UnavailableError(fault)
        yield parts
    finally:
        parts.outbox.close(2.0)
        parts.engine.dispose()


def missing_file(settings: Settings) -> str | None:
    """Say that a SQLite database is not there: opening it would make an empty one."""
    file = sa.make_url(settings.database_url).database if settings.is_sqlite else None
    if file is None or Path(file).exists():
        return None
    return f"there is no database {file}: `blox db upgrade` makes it"


def _redis_url(layout: Layout) -> str:
    configuration = layout.redis / "redis.conf"
    found = _PORT.search(configuration.read_text()) if configuration.exists() else None
    port = found.group(1) if found else "6379"
    return f"redis://:{layout.redis_password()}@127.0.0.1:{port}/0"
