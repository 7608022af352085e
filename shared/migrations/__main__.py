"""`python -m shared.migrations`: brings the database of the settings up to the newest schema."""

from __future__ import annotations

import sys

import sqlalchemy as sa

from shared.core.errors import BloxError
from shared.migrations.run import upgrade
from shared.runtime.database import build_engine, driver_says
from shared.runtime.settings import load_settings


def main() -> int:
    """Migrate; returns the exit code, and says why when it is not 0."""
    try:
        engine = build_engine(load_settings(), threads=1)
        try:
            revision = upgrade(engine)
        finally:
            engine.dispose()
    except sa.exc.SQLAlchemyError as error:
        return _failed(driver_says(error))
    except (BloxError, ValueError, OSError) as error:
        return _failed(str(error))
    sys.stdout.write(f"the schema is at {revision}\n")
    return 0


def _failed(reason: str) -> int:
    sys.stderr.write(f"the schema could not be brought up: {reason}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
