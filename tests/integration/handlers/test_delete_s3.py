"""SIGKILL at every named step of a deletion, on MariaDB and two buckets of a real S3."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from shared.catalog.invariants.bytes import Stores, byte_breaches
from shared.catalog.invariants.leftovers import Ages
from shared.catalog.invariants.rows import row_breaches
from shared.core.clock import Deadline, utc_now
from tests.integration.handlers.test_crashes import DELETE_STEPS
from tests.servers.rgw import CephRGW
from tests.support.replica_s3 import S3Replicas, crash_on_s3

pytestmark = pytest.mark.databases("mariadb")

CONTENT = os.urandom(100_000)
KILLED = -9


@pytest.fixture
def s3(blox_url: str, tmp_path: Path, rgw: CephRGW) -> Iterator[S3Replicas]:
    made = S3Replicas(blox_url, tmp_path)
    made.use(rgw)
    yield made
    made.close()


def breaches(s3: S3Replicas) -> list[str]:
    """Return what `blox check --deep` would list."""
    ages = Ages(key=0.0, upload=0.0, tombstone=0.0, staging=0.0)
    stores = Stores(channels=s3.s3, staging=s3.staging, ages=ages, is_deep=True)
    with Session(s3.db.engine) as session:
        rows = row_breaches(session, now=utc_now(), late_seconds=0.0, sweep_seconds=0.0)
        found = list(rows)
        session.rollback()
        return [str(one) for one in (*found, *byte_breaches(session, stores))]


@pytest.mark.parametrize("step", DELETE_STEPS)
def test_both_copies_go_whoever_dies(s3: S3Replicas, tmp_path: Path, step: str) -> None:
    bucket = s3.replicated()
    put = s3.put(bucket, "k", CONTENT)
    assert s3.work(put.task_id) == "completed"
    assert s3.work_all("replica") == ["completed"]
    blob_id = s3.version(put.version_id).blob_id
    s3.remove(bucket, "k")
    (task_id,) = s3.waiting("delete")
    assert crash_on_s3(s3, tmp_path, task_id, step) == KILLED
    s3.sweep(2)
    if s3.state(task_id) != "completed":
        s3.bench.set(task_id, state="pending", owner=None, lease_until=None)
        assert s3.work(task_id) == "completed"
    s3.sweep(2)
    assert s3.blob(blob_id).state == "deleted"
    assert {one.state for one in s3.locations(blob_id)} == {"tombstone"}
    for channel in ("one", "two"):
        assert list(s3.s3.get(channel).list(deadline=Deadline(20))) == []
    assert breaches(s3) == []
