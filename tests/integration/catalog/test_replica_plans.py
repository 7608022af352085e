"""The job's walks read what they return, however much lies behind them or beside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Blob, Location, LocationAudit, Replica, Version, utc_now
from shared.catalog.replicas.look_rows import page
from shared.catalog.replicas.walking import count_pending, page_of_versions
from tests.support.catalogue import World

pytestmark = pytest.mark.databases("mariadb")

COUNT = 4000


def rows_read(session: Session) -> int:
    """Return the rows that this session has read."""
    found = session.execute(sa.text("SHOW SESSION STATUS LIKE 'Handler_read%'")).all()
    return sum(int(value) for _, value in found)


def fill(world: World, entity: Any, own: Callable[[int], Mapping[str, Any]]) -> None:
    table: Any = entity.__table__
    rows = [{**own(number), "created_at": utc_now(-60)} for number in range(1, COUNT + 1)]
    with world.engine.begin() as connection:
        for start in range(0, COUNT, 500):
            connection.execute(sa.insert(table).values(rows[start : start + 500]))
        connection.exec_driver_sql(f"ANALYZE TABLE {table.name}").all()


def test_walks_read_their_page(world: World, bucket: int) -> None:
    fill(
        world,
        Blob,
        lambda n: {
            "tenant_id": "acme",
            "sha256": f"{n:064}",
            "size_bytes": 1,
            "state": "live",
        },
    )
    fill(
        world,
        Version,
        lambda n: {
            "object_id": n,
            "bucket_id": bucket,
            "tenant_id": "acme",
            "generation": 1,
            "state": "stored",
            "blob_id": n,
            "size_bytes": 1,
            "sha256": f"{n:064}",
            "etag": "e",
            "content_type": "t",
            "user_metadata": {},
        },
    )
    fill(
        world,
        Location,
        lambda n: {
            "blob_id": n,
            "channel": "a",
            "physical_key": f"k{n}",
            "state": "stored",
            "task_id": 1,
            "fence": 1,
            "attempt": 0,
        },
    )
    fill(
        world,
        Replica,
        lambda n: {
            "tenant_id": "acme",
            "blob_id": n,
            "channel": "b",
            "state": "pending" if n % 2 else "completed",
            "updated_at": utc_now(),
        },
    )
    audit = LocationAudit(channel="a", cursor=COUNT // 4)
    walks: dict[str, tuple[int, Callable[[Session], Any]]] = {
        # Each version with its replica, and its locations looked for.
        "rule": (500 * 6, lambda session: page_of_versions(session, bucket, "b", COUNT // 4)),
        # Each location with its blob.
        "audit": (
            200 * 3,
            lambda session: page(session, audit=audit, channel="a", limit=200),
        ),
        # Each row, and once more as one of those that are counted.
        "backlog": (250, lambda session: count_pending(session, "b", at_most=100)),
    }
    for name, (most, walk) in walks.items():

        def read(session: Session, walk: Callable[[Session], Any] = walk) -> int:
            before = rows_read(session)
            assert walk(session)
            return rows_read(session) - before

        assert world.run(read) < most, name
