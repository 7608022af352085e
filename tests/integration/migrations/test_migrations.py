"""The steps make exactly the tables of the models, on every database, also when many start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from shared.catalog.models import Base
from shared.catalog.secret_box import SecretBox
from shared.migrations.run import current, downgrade, head, upgrade
from shared.outbox.dialect import prepare
from shared.outbox.schema import metadata
from shared.runtime.schema import EXPECTED_HEAD, schema_fault
from tests.support.databases import fresh_database


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database_url)
    prepare(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def model_engine(
    request: pytest.FixtureRequest, engine: sa.Engine, tmp_path: Path
) -> Iterator[sa.Engine]:
    """A second database, whose tables are made from the models."""
    kind = "sqlite" if engine.dialect.name == "sqlite" else "mariadb"
    folder = tmp_path / "models"
    folder.mkdir()
    with fresh_database(
        kind, directory=folder, server=lambda: request.getfixturevalue("mariadb")
    ) as url:
        other = sa.create_engine(url)
        metadata.create_all(other)
        Base.metadata.create_all(other)
        yield other
        other.dispose()


def definitions(engine: sa.Engine) -> dict[str, str]:
    """Return what the database itself says of every table and index."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            rows = connection.execute(
                sa.text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
            )
            # A column that was added later stands behind other blanks.
            found = {name: re.sub(r"\s*([(),])\s*", r"\1", " ".join(s.split())) for name, s in rows}
        else:
            found = {}
            for name in sa.inspect(connection).get_table_names():
                text = connection.execute(sa.text(f"SHOW CREATE TABLE `{name}`")).one()[1]
                lines = text.splitlines()
                # Indexes stand in the order in which they were made.
                keys = sorted(
                    line.strip(" ,") for line in lines if re.match(r"\s+(UNIQUE )?KEY", line)
                )
                rest = [line.strip(" ,") for line in lines if line.strip(" ,") not in keys]
                found[name] = "\n".join(rest + keys)
    found.pop("alembic_version", None)
    return {
        name: text
        for name, text in found.items()
        if not name.startswith("sqlite_") and "alembic_version" not in text
    }


def test_upgrade_makes_exactly_the_tables_of_the_models(
    engine: sa.Engine, model_engine: sa.Engine
) -> None:
    upgrade(engine)
    migrated, modelled = definitions(engine), definitions(model_engine)
    assert sorted(migrated) == sorted(modelled)
    assert migrated == modelled


def test_a_difference_from_the_models_would_be_seen(
    engine: sa.Engine, model_engine: sa.Engine
) -> None:
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE blobs ADD COLUMN extra INTEGER"))
    assert definitions(engine) != definitions(model_engine)


def test_upgrade_again_changes_nothing(engine: sa.Engine) -> None:
    assert upgrade(engine) == head()
    before = definitions(engine)
    assert upgrade(engine) == head()
    assert definitions(engine) == before


def test_many_processes_may_upgrade_at_once(engine: sa.Engine, database_url: str) -> None:
    barrier = threading.Barrier(4)
    failures: list[BaseException] = []

    def run() -> None:
        own = sa.create_engine(database_url)
        barrier.wait(timeout=10)
        try:
            upgrade(own)
        except BaseException as error:
            failures.append(error)
        finally:
            own.dispose()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert failures == []
    with engine.connect() as connection:
        assert current(connection) == head()


def test_downgrade_takes_everything_away(engine: sa.Engine) -> None:
    upgrade(engine)
    downgrade(engine, "base")
    assert set(sa.inspect(engine).get_table_names()) <= {"alembic_version"}


def test_expected_head_is_the_newest_step() -> None:
    assert head() == EXPECTED_HEAD


def test_schema_fault_tells_what_to_do(engine: sa.Engine) -> None:
    assert "no schema" in (schema_fault(engine) or "")
    upgrade(engine, "0001")
    assert "0001" in (schema_fault(engine) or "")
    upgrade(engine)
    assert schema_fault(engine) is None
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    assert schema_fault(engine) is None


def test_schema_fault_never_raises() -> None:
    engine = sa.create_engine("mysql+pymysql://nobody@127.0.0.1:1/none")
    assert "does not answer" in (schema_fault(engine) or "")


def test_upgrade_leaves_no_lifted_limits_in_the_pool(engine: sa.Engine) -> None:
    upgrade(engine)
    if engine.dialect.name == "sqlite":
        return
    with engine.connect() as connection:
        limit = connection.scalar(sa.text("SELECT @@max_statement_time"))
        assert float(limit) == 30.0


@pytest.mark.databases("sqlite")
def test_one_command_brings_the_schema_up_or_says_why_not(
    engine: sa.Engine, tmp_path: Path
) -> None:
    def migrate(url: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "shared.migrations"],
            cwd=Path(__file__).resolve().parents[3],
            env={
                "PATH": os.environ["PATH"],
                "BLOX_DATABASE_URL": url,
                "BLOX_SECRET_KEY": SecretBox.generate_key(),
                "BLOX_STAGING__PATH": str(tmp_path / "staging"),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    done = migrate(str(engine.url))
    assert (done.returncode, done.stdout) == (0, f"the schema is at {EXPECTED_HEAD}\n"), done.stderr
    assert schema_fault(engine) is None
    refused = migrate("mysql+pymysql://nobody@127.0.0.1:1/none")
    assert refused.returncode == 1
    assert "could not be brought up" in refused.stderr
    assert "Traceback" not in refused.stderr
