"""Replicas between buckets of a real S3 on MariaDB: the server copies; killed at every step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.rgw import CephRGW
from tests.support.replica_s3 import PART, S3Replicas, crash_on_s3

pytestmark = [pytest.mark.databases("mariadb"), pytest.mark.needs_root]

SMALL = b"hello world"
LARGE = os.urandom(2 * PART + 17)
STEPS = [
    "replica.claimed",
    "replica.after_intent",
    "replica.after_checkpoint",
    "replica.after_upload_id",
    "replica.after_part",
    "storage.completed",
    "replica.after_bytes",
    "replica.before_commit",
    "complete.before_commit",
    "complete.after_commit",
    "replica.after_commit",
]


@pytest.fixture
def s3(blox_url: str, tmp_path: Path) -> Iterator[S3Replicas]:
    made = S3Replicas(blox_url, tmp_path)
    yield made
    made.close()


def store(s3: S3Replicas, content: bytes) -> tuple[int, int]:
    """Store an object on the first bucket; returns its blob and the task that copies it."""
    put = s3.put(s3.replicated(), "x", content)
    assert s3.work(put.task_id) == "completed"
    (task,) = s3.waiting("replica")
    return s3.version(put.version_id).blob_id, task


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["whole", "parts"])
def test_the_server_copies(s3: S3Replicas, rgw: CephRGW, content: bytes) -> None:
    s3.use(rgw)
    blob, task = store(s3, content)
    assert s3.work(task) == "completed"
    result = s3.task(task)["result"]
    assert (result["method"], result["bytes_sent"]) == ("server", 0)
    assert s3.content(blob, "two") == content
    assert s3.breaches() == []


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_every_step(s3: S3Replicas, rgw: CephRGW, tmp_path: Path, step: str) -> None:
    s3.use(rgw)
    blob, task = store(s3, LARGE)
    assert crash_on_s3(s3, tmp_path, task, step) == -9
    s3.sweep(2)
    if s3.state(task) != "completed":
        s3.bench.set(task, state="pending", owner=None, lease_until=None)
        assert s3.work(task) == "completed"
    assert s3.content(blob, "two") == LARGE
    s3.sweep(3)
    assert s3.breaches() == []
