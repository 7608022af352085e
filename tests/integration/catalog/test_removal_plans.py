"""Walks of removals, expiry and holds: each page costs the same, however much lies around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog import removals
from shared.catalog.expiries import Due, find_due
from shared.catalog.holds import overdue_holds
from shared.catalog.lifecycle_walks import walk_page
from shared.catalog.models import Bucket, Expiry, Hold, LifecycleWalk, ObjectRow, utc_now
from tests.support.catalogue import World

pytestmark = pytest.mark.databases("mariadb")

COUNT = 6000


def fill(world: World, bucket: int) -> None:
    """Make many names, all of them of what was deleted, many expiries and many holds."""

    def write(session: Session) -> None:
        now = session.scalar(sa.select(utc_now()))
        session.execute(
            sa.insert(ObjectRow),
            [
                {"bucket_id": bucket, "key": f"{n:06}", "generation": 2, "created_at": now}
                for n in range(COUNT)
            ],
        )
        session.execute(
            sa.insert(Expiry), [{"version_id": n + 1, "due_at": now} for n in range(COUNT)]
        )
        hold = {"tenant_id": "acme", "bucket_id": bucket, "object_id": 1, "version_id": 1}
        hold |= {"blob_id": 1, "reason": "r", "created_at": now}
        session.execute(
            sa.insert(Hold),
            [{**hold, "state": "active", "until": None} for _ in range(COUNT // 2)]
            + [{**hold, "state": "released", "until": now} for _ in range(COUNT // 2)],
        )

    world.run(write)
    with world.engine.connect() as connection:
        for table in ("objects", "expiries", "holds"):
            connection.exec_driver_sql(f"ANALYZE TABLE {table}").all()


def rows_read(world: World, act: Callable[[Session], Any]) -> int:
    """Return how many rows the database touched."""

    def work(session: Session) -> int:
        def status() -> int:
            rows = session.execute(sa.text("SHOW SESSION STATUS LIKE 'Handler_read%'")).all()
            return sum(int(value) for _, value in rows)

        before = status()
        act(session)
        return status() - before

    return world.run(work)


def test_pages_do_not_read_what_lies_around_them(world: World, bucket: int) -> None:
    fill(world, bucket)
    removal = world.run(
        lambda session: removals.start_removal(
            session, world.catalogue, session.get_one(Bucket, bucket), prefix=""
        )
    )
    (first,) = world.run(lambda session: find_due(session, None, limit=1))
    middle = Due(first.due_at, COUNT // 4)

    def walk(session: Session) -> None:
        session.add(
            LifecycleWalk(
                bucket_id=bucket, revision="r", cursor=f"{COUNT // 4:06}", created_at=utc_now()
            )
        )
        session.flush()
        walk_page(session, bucket)

    costs = {
        "removal": rows_read(
            world, lambda session: removals.look(session, removal, after=f"{COUNT // 4:06}")
        ),
        "due": rows_read(world, lambda session: find_due(session, middle, limit=100)),
        "holds": rows_read(world, lambda session: overdue_holds(session, limit=100)),
        "walk": rows_read(world, walk),
    }
    assert costs["removal"] <= 3 * removals.LOOK_ROWS, costs
    # One transaction wrote them all, so that they are due at the same moment: the worst case.
    assert costs["due"] <= COUNT // 4 + 300, costs
    assert costs["holds"] <= 100, costs
    assert costs["walk"] <= 1000, costs
