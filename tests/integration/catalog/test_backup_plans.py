"""The walks of backups and their pruning read what they return, however much there is beside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from services.backup.auditing import stretch
from shared.catalog.backups.erasing import due_contents
from shared.catalog.backups.held import held_copies
from shared.catalog.backups.pins import release_page
from shared.catalog.backups.retention import forget_items, page_of_held, unneeded
from shared.catalog.backups.runs import has_open_items
from shared.catalog.models import BackupContent, BackupItem, BackupRun, Loss, utc_now
from shared.catalog.restores.losses import losses_to_try
from tests.support.catalogue import World

pytestmark = pytest.mark.databases("mariadb")

COUNT = 4000
PAGE = 200
TENANT = "acme"


def test_walks_read_their_page(world: World, bucket: int) -> None:
    _fill(
        world,
        BackupRun,
        lambda n: {
            "id": n,
            "tenant_id": TENANT,
            "bucket_id": bucket,
            "target": "c",
            "slot": str(n),
            "state": "pruned" if n == 2 else "complete",
            "snapshot_version_id": 1,
        },
        count=4,
    )
    _fill(
        world,
        BackupContent,
        lambda n: {
            "tenant_id": TENANT,
            "target": "c",
            "kind": "content",
            "sha256": f"{n:064}",
            "size_bytes": 1,
            "physical_key": f"k{n}",
            "state": "damaged" if n % 50 == 0 else "stored",
            "task_id": 1,
            "fence": 1,
        },
    )
    _fill(
        world,
        BackupItem,
        lambda n: {
            "run_id": 1 + n % 2,
            "blob_id": n,
            "state": "done",
            "size_bytes": 1,
            "content_id": n,
        },
    )
    _fill(
        world,
        Loss,
        lambda n: {
            "tenant_id": TENANT,
            "blob_id": n,
            "location_id": n,
            "channel": "a",
            "state": "restored",
            "round": 1,
            "found_by": "read",
            "detail": "",
        },
    )
    middle = COUNT // 4
    some = list(range(middle, middle + PAGE))
    walks: dict[str, tuple[int, Callable[[Session], Any]]] = {
        "held": (PAGE * 2, lambda session: page_of_held(session, "c", TENANT, middle, limit=PAGE)),
        "unneeded": (PAGE * 6, lambda session: unneeded(session, some)),
        "audit": (1500, lambda session: stretch(session, "c", TENANT)),
        "forgotten": (
            PAGE * 8,
            lambda session: forget_items(session, bucket, "c", limit=PAGE),
        ),
        "due": (10, lambda session: due_contents(session, target="c", limit=PAGE) == []),
        "open items": (10, lambda session: not has_open_items(session, 1)),
        "pins": (30, lambda session: not release_page(session, world.catalogue, 1)),
        "copies": (20, lambda session: held_copies(session, TENANT, f"{middle + 1:064}", 1)),
        "losses": (10, lambda session: losses_to_try(session, limit=PAGE) == []),
    }
    read: dict[str, int] = {}
    for name, (_most, walk) in walks.items():

        def count(session: Session, walk: Callable[[Session], Any] = walk, name: str = name) -> int:
            before = _rows_read(session)
            assert walk(session), name
            return _rows_read(session) - before

        read[name] = world.run(count)
    assert {name: rows for name, rows in read.items() if rows > walks[name][0]} == {}


def _rows_read(session: Session) -> int:
    found = session.execute(sa.text("SHOW SESSION STATUS LIKE 'Handler_read%'")).all()
    return sum(int(value) for _, value in found)


def _fill(
    world: World, entity: Any, own: Callable[[int], Mapping[str, Any]], *, count: int = COUNT
) -> None:
    table: Any = entity.__table__
    rows = [{**own(number), "created_at": utc_now(-60)} for number in range(1, count + 1)]
    with world.engine.begin() as connection:
        for start in range(0, count, 500):
            connection.execute(sa.insert(table).values(rows[start : start + 500]))
        connection.exec_driver_sql(f"ANALYZE TABLE {table.name}").all()
