"""Replicas, repairs, copies and moves between buckets of a real S3; killed at every step."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.catalog.copies import CopyBegun, CopyOrder, copy_object
from shared.catalog.replicas.job import ReplicaJob
from shared.catalog.replicas.limits import ReplicaLimits
from shared.core.clock import Deadline
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


def die_and_go_on(s3: S3Replicas, root: Path, task: int, step: str) -> None:
    """Let a process die in the task, bring it back as the lease scan does, and end it."""
    assert crash_on_s3(s3, root, task, step) == -9, step
    s3.sweep(2)
    if s3.state(task) != "completed":
        s3.bench.set(task, state="pending", owner=None, lease_until=None)
        assert s3.work(task) == "completed", step


def content_for(step: str) -> bytes:
    """Return a content of the step's own, in parts where the step is one of parts."""
    is_large = step.endswith(("after_upload_id", "after_part", "storage.completed"))
    return (LARGE if is_large else SMALL) + step.encode()


def audit(s3: S3Replicas) -> Counter[str]:
    """Take one turn of the audit."""
    limits = ReplicaLimits(grace_seconds=0.0, retry_seconds=0.0, again_seconds=0.0)
    return ReplicaJob(s3.db, s3.catalogue, s3.s3, limits).run_once(lambda: None)


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_every_step(s3: S3Replicas, rgw: CephRGW, tmp_path: Path, step: str) -> None:
    s3.use(rgw)
    blob, task = store(s3, LARGE)
    die_and_go_on(s3, tmp_path, task, step)
    assert s3.content(blob, "two") == LARGE
    s3.sweep(3)
    assert s3.breaches() == []


def test_a_repair_killed_at_every_step(s3: S3Replicas, rgw: CephRGW, tmp_path: Path) -> None:
    s3.use(rgw)
    bucket = s3.replicated()
    for step in STEPS:
        content = content_for(step)
        put = s3.put(bucket, step, content)
        assert s3.work(put.task_id) == "completed"
        assert s3.work_all("replica") == ["completed"], step
        blob = s3.version(put.version_id).blob_id
        (lost,) = [
            one for one in s3.locations(blob) if (one.channel, one.state) == ("one", "stored")
        ]
        s3.s3.get("one").delete(lost.key, deadline=Deadline(20))
        audit(s3)
        audit(s3)
        (task,) = s3.waiting("replica")
        die_and_go_on(s3, tmp_path, task, step)
        assert s3.content(blob, "one") == content, step
    s3.sweep(3)
    assert s3.breaches() == []


def test_copies_and_moves_over_channels_killed_at_every_step(
    s3: S3Replicas, rgw: CephRGW, tmp_path: Path
) -> None:
    s3.use(rgw)
    source, target = s3.bucket_on("source", "one"), s3.bucket_on("target", "two")
    steps = [step.replace("replica.", "object.") for step in STEPS]
    for number, step in enumerate(steps):
        is_move = number % 2 == 1
        content = content_for(step)
        put = s3.put(source, step, content)
        assert s3.work(put.task_id) == "completed"
        order = CopyOrder(
            source_bucket_id=source,
            source_key=step,
            target_bucket_id=target,
            target_key=step,
            is_move=is_move,
        )
        begun = s3.db.run_session(
            lambda session, one=order: copy_object(  # type: ignore[misc]
                session, s3.catalogue, one
            )
        )
        assert isinstance(begun, CopyBegun)
        die_and_go_on(s3, tmp_path, begun.task_id, step)
        current = s3.object(target, step).current_version_id
        assert current is not None, step
        assert s3.content(s3.version(current).blob_id, "two") == content, step
        left = s3.object(source, step).current_version_id
        assert left == (None if is_move else put.version_id), step
    s3.sweep(3)
    s3.work_all("delete")
    s3.sweep(2)
    assert s3.breaches() == []
