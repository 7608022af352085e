"""Fresh databases for tests, on either kind that the product supports."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from tests.servers.mariadb import MariaDB

DatabaseKind = Literal["sqlite", "mariadb"]
KINDS: tuple[DatabaseKind, ...] = ("sqlite", "mariadb")


@contextlib.contextmanager
def fresh_database(
    kind: DatabaseKind, *, directory: Path, server: Callable[[], MariaDB]
) -> Iterator[str]:
    """Give the SQLAlchemy address of an empty database, which is gone after the block.

    `server` is asked only for MariaDB, so that SQLite needs none.
    """
    if kind == "sqlite":
        yield f"sqlite:///{directory / 'blox.sqlite3'}"
        return
    mariadb = server()
    name = mariadb.create_database()
    try:
        yield mariadb.url(name)
    finally:
        # A test that stopped the server must not fail the next ones.
        if not mariadb.process.is_running():
            mariadb.start()
        mariadb.drop_database(name)
