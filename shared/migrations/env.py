"""Alembic's entry: runs the steps on the connection that `run.upgrade` gives it.

`alembic -x url=... upgrade head` works as well, for those who know the tool.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

from shared.catalog.models import Base
from shared.outbox.dialect import prepare
from shared.outbox.schema import metadata


def run(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=[metadata, Base.metadata],
        # SQLite cannot alter a column: later steps copy the table.
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    connection = context.config.attributes.get("connection")
    if connection is not None:
        run(connection)
        return
    url = context.get_x_argument(as_dictionary=True).get("url")
    if url is None:
        raise SystemExit("name the database: alembic -x url=<SQLAlchemy URL> ...")
    engine = sa.create_engine(url)
    prepare(engine)
    try:
        with engine.begin() as connection:
            run(connection)
    finally:
        engine.dispose()


main()
