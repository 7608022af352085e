"""Locks go to the rows that are meant and no others: every locking read finds them by an index."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.listing import list_objects
from shared.catalog.models import Location, ObjectRow, Version, VersionState, utc_now
from shared.catalog.sweeps import ends, locations
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


def test_a_walk_that_goes_on_reads_nothing_of_what_lies_behind_it(
    world: World, bucket: int
) -> None:
    count = 8000
    _fill(world, bucket, count)
    cursor = base64.urlsafe_b64encode(f"{count // 4:06}".encode()).decode()
    walks: dict[str, Callable[[Session], Any]] = {
        "objects": lambda session: list_objects(session, bucket, cursor=cursor, limit=10).items,
        "folded": lambda session: (
            list_objects(session, bucket, cursor=cursor, limit=10, delimiter="/").prefixes
        ),
        "intents": lambda session: locations.page_of_intents(session, count // 4, 0.0),
        "versions": lambda session: ends.page_of_unfinished(
            session, bucket, VersionState.PENDING, count // 4
        ),
    }
    for name, walk in walks.items():

        def read(session: Session, walk: Callable[[Session], Any] = walk) -> int:
            before = _rows_read(session)
            assert walk(session)
            return _rows_read(session) - before

        # A page of 500, each row looked at and read; two thousand lie behind it.
        assert world.run(read) < 1200, name


def _rows_read(session: Session) -> int:
    """Return the rows that this session has read, also those that an index condition dropped."""
    found = session.execute(sa.text("SHOW SESSION STATUS LIKE 'Handler_%'")).all()
    return sum(
        int(value)
        for name, value in found
        if name.startswith("Handler_read") or name == "Handler_icp_attempts"
    )


def _fill(world: World, bucket: int, count: int) -> None:
    for entity, common, own in (
        (
            ObjectRow,
            {"bucket_id": bucket, "is_listed": 1, "size_bytes": 1, "etag": "e", "generation": 1}
            | {"content_type": "t", "served_version_id": 1, "modified_at": utc_now()},
            lambda number: {"object_key": f"{number:06}/x".encode()},
        ),
        (
            Location,
            {"channel": "a", "state": "intent", "task_id": 1, "fence": 1, "attempt": 0},
            lambda number: {"blob_id": number, "physical_key": f"k{number}"},
        ),
        (
            Version,
            {"bucket_id": bucket, "tenant_id": "acme", "generation": 1, "state": "pending"}
            | {"size_bytes": 1, "sha256": "s", "etag": "e", "content_type": "t"}
            | {"user_metadata": {}},
            lambda number: {"object_id": number, "blob_id": number},
        ),
    ):
        table: Any = entity.__table__
        rows = [{**common, **own(number), "created_at": utc_now(-60)} for number in range(count)]
        with world.engine.begin() as connection:
            for start in range(0, count, 500):
                connection.execute(sa.insert(table).values(rows[start : start + 500]))
            connection.exec_driver_sql(f"ANALYZE TABLE {table.name}").all()
