"""Whether the database has the tables that this code was written for."""

from __future__ import annotations

import sqlalchemy as sa

from shared.runtime.database import driver_says

#: The newest step of shared/migrations. A test compares; this package may not import that one.
EXPECTED_HEAD = "0011"

_HOW = "run `blox db upgrade`"


def schema_fault(engine: sa.Engine) -> str | None:
    """Return a sentence on what is wrong with the schema, None when this code can work with it.

    A newer schema is fine: steps only take away what the release before no longer used, so that
    old processes run on while a new release comes up. Never raises.
    """
    try:
        with engine.connect().execution_options(read_only=True) as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return f"the database has no schema: {_HOW}"
            found = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    except (sa.exc.SQLAlchemyError, OSError) as error:
        return f"the database does not answer: {driver_says(error)}"
    if found is None:
        return f"the database has no schema: {_HOW}"
    if str(found) < EXPECTED_HEAD:
        return f"the schema is at {found}, this code needs {EXPECTED_HEAD}: {_HOW}"
    return None
