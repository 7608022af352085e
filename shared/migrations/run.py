"""Bringing a database up to a revision, safely when many processes try at once.

On MySQL an advisory lock lets one go first; on SQLite the steps are one write transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from shared.core.errors import UnavailableError
from shared.outbox.dialect import prepare

#: Seconds that a process waits for another's migration.
LOCK_SECONDS = 300
#: Seconds that a step waits for the metadata lock of a table in use.
TABLE_LOCK_SECONDS = 60


def upgrade(engine: sa.Engine, revision: str = "head") -> str:
    """Bring the database up to `revision` and return the one that it is at then.

    Idempotent. Raises UnavailableError when another process's migration does not end in time.
    """
    prepare(engine)
    with engine.connect() as connection, _alone(connection):
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.commit()
        return current(connection) or ""


def downgrade(engine: sa.Engine, revision: str) -> None:
    """Take the database back. Drops tables with their rows: for developers."""
    prepare(engine)
    with engine.connect() as connection, _alone(connection):
        config = alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, revision)
        connection.commit()


def current(connection: sa.Connection) -> str | None:
    """Return the revision that the database is at, None before the first step."""
    return MigrationContext.configure(connection).get_current_revision()


def head() -> str:
    """Return the newest revision of this code."""
    return ScriptDirectory.from_config(alembic_config()).get_current_head() or ""


def alembic_config() -> Config:
    """Return Alembic's configuration, without any file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@contextmanager
def _alone(connection: sa.Connection) -> Iterator[None]:
    if connection.dialect.name == "sqlite":
        # The steps run in the transaction that is begun here: BEGIN IMMEDIATE is the lock.
        connection.execute(sa.text("SELECT 1"))
        yield
        return
    name = sa.literal(f"blox.migrations.{connection.engine.url.database}"[:64])
    taken = connection.scalar(sa.select(sa.func.get_lock(name, LOCK_SECONDS)))
    if taken != 1:
        raise UnavailableError("another process's migration does not end")
    try:
        _unbound(connection)
        yield
    finally:
        connection.rollback()
        connection.execute(sa.select(sa.func.release_lock(name)))
        # Its limits are not those of the pool's other connections.
        connection.invalidate()


def _unbound(connection: sa.Connection) -> None:
    """Let statements take their time: a step may rewrite a large table."""
    limits = [f"SESSION lock_wait_timeout = {TABLE_LOCK_SECONDS}"]
    if getattr(connection.dialect, "is_mariadb", False):
        limits += ["SESSION max_statement_time = 0", "SESSION idle_transaction_timeout = 0"]
    connection.exec_driver_sql("SET " + ", ".join(limits))
    connection.commit()
