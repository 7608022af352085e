"""Locks go to the rows that are meant and no others: every locking read finds them by an index."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.catalogue import World

pytestmark = pytest.mark.databases("mariadb")

#: Tables whose statements are looked at.
TABLES = ("objects", "versions", "blobs", "blob_refs", "locations", "reviews", "buckets")


def _plans(world: World, seen: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    plans = []
    with world.engine.connect() as connection:
        for text, parameters in seen:
            if text.startswith(("SELECT", "UPDATE", "DELETE")) and any(
                f" {table}" in text for table in TABLES
            ):
                found = connection.exec_driver_sql(f"EXPLAIN {text}", parameters).mappings().all()
                plans.append((text, found))
    return plans


def test_no_statement_of_a_write_scans_a_table(world: World, bucket: int) -> None:
    for number in range(40):
        world.put_stored(bucket, f"k{number}", f"{number}".encode())
    with world.engine.connect() as connection:
        for table in TABLES:
            connection.exec_driver_sql(f"ANALYZE TABLE {table}").all()
    seen: list[tuple[str, Any]] = []
    sa.event.listen(
        world.engine, "before_cursor_execute", lambda *args: seen.append((args[2], args[3]))
    )
    world.put_stored(bucket, "k1", b"new")
    world.put(bucket, "k2", b"3")
    world.put(bucket, "k3", b"pending")
    world.put(bucket, "k3", b"newer")
    world.delete(bucket, "k4")
    world.read(bucket, "k5")
    plans = _plans(world, list(seen))
    assert len(plans) > 40
    for text, steps in plans:
        for step in steps:
            if step["table"] is None:
                continue  # answered from the index, or nothing matched
            assert step["type"] not in {"ALL", "index"}, (text, dict(step))
            assert "filesort" not in (step["Extra"] or ""), (text, dict(step))
