"""Fifty clients over twenty contents and twenty names, no grace, cleanups every second, kills.

Afterwards no content is lost, nothing is left over, and no reference was dropped twice: every
invariant holds, every name reads as it should, and when all names go every byte goes with them.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from services.cli.supervisor import EmbeddedStack
from shared.outbox.schema import tasks
from tests.acceptance.product import foreign_client, s3_variables
from tests.faults.crowd import Crowd
from tests.faults.test_storm import check, settings
from tests.servers.redis import RedisServer
from tests.servers.rgw import CephRGW
from tests.support.eventually import eventually

#: Steps of a deletion at which one execution in some dies.
DEADLY = (
    "delete.after_ownership=kill:0.02,delete.after_bytes=kill:0.02,delete.after_place=kill:0.02,"
    "delete.before_commit=kill:0.02,complete.after_commit=kill:0.01,"
    "prefix.after_page=kill:0.05,prefix.before_commit=kill:0.05"
)
#: The same for uploads, of which there are more, and for the joining of parts.
DEADLY_UPLOADS = (
    "upload.after_intent=kill:0.003,upload.after_bytes=kill:0.003,"
    "upload.before_commit=kill:0.003,upload.after_commit=kill:0.003,"
    "assemble.after_bytes=kill:0.03,assemble.before_commit=kill:0.03,"
    "complete.before_commit=kill:0.01,assemble.after_commit=kill:0.03"
)
DEADLY_COPIES = (
    "object.after_intent=kill:0.03,object.after_bytes=kill:0.03,object.before_commit=kill:0.03,"
    "complete.before_commit=kill:0.02,object.after_commit=kill:0.03"
)
#: A move over channels whose source came under a hold meanwhile.
EXPLAINED = ("replica.object", "object_held")
QUIET_SECONDS = 120.0


def soak(
    database_url: str, redis: RedisServer, rgw: CephRGW, directory: Path, *, seconds: float
) -> Crowd:
    run = uuid.uuid4().hex[:12]
    variables = {
        **settings(database_url, redis.url),
        **s3_variables("a", rgw.server, f"a-{run}"),
        **s3_variables("b", rgw.server, f"b-{run}"),
        "BLOX_GRACE_SECONDS": "0",
        "BLOX_SCHEDULER__CLEANUP_SECONDS": "1",
        "BLOX_SCHEDULER__EXPIRY_SECONDS": "1",
        "BLOX_SWEEPS__MIN_AGE_SECONDS": "1",
        "BLOX_SWEEPS__TOMBSTONE_SECONDS": "5",
        "BLOX_OUTBOX__MAX_RECOVERIES": "1000",
        "BLOX_API__MIN_PART_BYTES": "1",
    }
    stack = EmbeddedStack(
        directory / "stack",
        variables=variables,
        per_process={
            "delete": {"BLOX_FAILPOINTS": DEADLY},
            "upload-1": {"BLOX_FAILPOINTS": DEADLY_UPLOADS},
            "replica": {"BLOX_FAILPOINTS": DEADLY_COPIES},
        },
        workers={"upload": 2, "delete": 1, "replica": 1},
    )
    with stack:
        crowd = Crowd(stack, kill_every_seconds=2.0)
        crowd.run(seconds)
        print(f"{sorted(crowd.done.items())}, {len(crowd.kills)} kills")
        assert crowd.surprises == []
        for name in ("delete", "upload-1", "replica"):
            stack.set_variables(name, {"BLOX_FAILPOINTS": ""})
        become_quiet(stack, database_url)
        assert crowd.wrong_reads() == []
        assert check(stack) == []
        crowd.delete_all()
        become_quiet(stack, database_url)
        assert check(stack) == []
        assert_empty(stack, database_url, foreign_client(rgw.server))
    return crowd


def become_quiet(stack: EmbeddedStack, database_url: str) -> None:
    """Wait until no task is open."""
    engine = sa.create_engine(database_url)
    ended = ("completed", "cancelled", "failed")

    def is_open() -> list[tuple[str, str, int]]:
        query = (
            sa.select(tasks.c.kind, tasks.c.state, sa.func.count())
            .where(tasks.c.state.not_in(ended))
            .group_by(tasks.c.kind, tasks.c.state)
        )
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(query)]  # type: ignore[misc]

    def failed() -> list[tuple[str, str | None]]:
        query = sa.select(tasks.c.kind, tasks.c.error_code).where(tasks.c.state == "failed")
        with engine.connect() as connection:
            rows = [tuple(row) for row in connection.execute(query)]
        return [row for row in rows if row != EXPLAINED]

    try:
        stack.wait_ready(30.0)
        eventually(lambda: not is_open(), QUIET_SECONDS, interval_seconds=0.2)
        assert failed() == []
    finally:
        engine.dispose()


def assert_empty(stack: EmbeddedStack, database_url: str, s3: Any) -> None:
    """Nothing refers to anything, and no byte is on any channel."""
    engine = sa.create_engine(database_url)
    try:
        with engine.connect() as connection:
            count = connection.scalar(sa.text("SELECT COUNT(*) FROM blob_refs"))
            assert count == 0
            states = connection.scalars(sa.text("SELECT DISTINCT state FROM blobs"))
            assert set(states) <= {"deleted"}
    finally:
        engine.dispose()
    buckets = [channel.bucket for channel in stack.settings.channels.values()]
    assert len(buckets) == 2
    for bucket in buckets:
        assert s3.list_objects_v2(Bucket=bucket).get("Contents", []) == []
        assert s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.databases("mariadb")
def test_three_minutes_of_a_crowd(
    database_url: str, private_redis: RedisServer, rgw: CephRGW, tmp_path: Path
) -> None:
    crowd = soak(database_url, private_redis, rgw, tmp_path, seconds=180.0)
    assert len(crowd.kills) >= 30


@pytest.mark.timeout(300)
@pytest.mark.databases("mariadb")
def test_ten_seconds_of_a_crowd(
    database_url: str, private_redis: RedisServer, rgw: CephRGW, tmp_path: Path
) -> None:
    crowd = soak(database_url, private_redis, rgw, tmp_path, seconds=10.0)
    assert crowd.kills
