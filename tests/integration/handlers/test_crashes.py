"""SIGKILL at every named step of the protocols; then another worker goes on, and sweeps clean up.

Afterwards everything is as if nobody had died: the same rows, the same bytes, nothing left over.
One step at a time, on SQLite and folders; all of them on real servers in tests/faults/steps.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy as sa

from shared.catalog.models import BlobRef, Version
from shared.core.clock import Deadline
from shared.storage.errors import ChannelUnavailable
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.crash import crash
from tests.support.handlers import PART_BYTES, Stand

pytestmark = pytest.mark.databases("sqlite")

KILLED = -9
SMALL = b"hello world"
LARGE = os.urandom(PART_BYTES * 3)

UPLOAD_STEPS = [
    "upload.claimed",
    "upload.after_intent",
    "upload.after_checkpoint",
    "upload.after_bytes",
    "upload.before_commit",
    "fenced.before_commit",
    "complete.before_commit",
    "complete.after_commit",
    "upload.after_commit",
    "upload.after_unlink",
]
#: Where a large file differs from a small one.
LARGE_STEPS = [
    "upload.after_upload_id",
    "upload.after_part",
    "upload.after_bytes",
    "complete.before_commit",
]
DELETE_STEPS = [
    "delete.claimed",
    "fenced.before_commit",
    "delete.after_ownership",
    "delete.after_bytes",
    "delete.after_place",
    "delete.before_commit",
    "complete.before_commit",
    "complete.after_commit",
    "delete.after_commit",
]
REVIEW_STEPS = [
    "review.claimed",
    "review.after_steps",
    "review.before_commit",
    "complete.before_commit",
    "complete.after_commit",
    "review.after_commit",
]


def die_and_go_on(stand: Stand, root: Path, task_id: int | None, failpoint: str) -> None:
    """Let a process die in the task, bring it back as the lease scan does, and end it."""
    assert task_id is not None
    url = stand.db.engine.url.render_as_string(hide_password=False)
    assert crash(url, root, task_id, failpoint) == KILLED
    passes(sweeper(stand), 2)
    if stand.state(task_id) == "completed":
        return
    assert stand.state(task_id) == "running"
    stand.bench.set(task_id, state="pending", owner=None, lease_until=None)
    assert stand.work(task_id) == "completed"


def check_all(stand: Stand) -> None:
    """Hold the rows against each other and against what is really on the channels (I1 to I7)."""
    sweeps = sweeper(stand)
    passes(sweeps, 3)
    stand.work_all("delete")
    passes(sweeps, 2)

    locations = stand.locations()
    stored = {(one.channel, one.key) for one in locations if one.state == "stored"}
    assert {one.state for one in locations} <= {"stored", "tombstone"}
    for channel in stand.channels.names():
        assert set(stand.channels.keys(channel)) == {key for name, key in stored if name == channel}
        opened = stand.channels.faulty[channel].inner
        assert list(opened.list_uploads(deadline=Deadline(5))) == []
    versions = stand.look(lambda session: list(session.scalars(sa.select(Version))))
    rows = stand.look(lambda session: list(session.scalars(sa.select(BlobRef))))
    refs = {(row.blob_id, row.holder_id) for row in rows if row.holder_kind == "version"}
    assert refs == {(one.blob_id, one.id) for one in versions if one.state == "stored"}
    for version in versions:
        if version.state == "stored":
            stand.stored_bytes(version.id)
    named = {one.staging_key for one in versions if one.staging_key}
    old = stand.staging.old(minimum_age_seconds=0.0, deadline=Deadline(5))
    assert {entry.key for entry in old} == named
    assert stand.waiting("upload") == stand.waiting("delete") == stand.waiting("review") == []


@pytest.mark.parametrize("step", UPLOAD_STEPS)
def test_upload_of_a_small_file(stand: Stand, tmp_path: Path, step: str) -> None:
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    die_and_go_on(stand, tmp_path, put.task_id, step)
    assert stand.stored_bytes(put.version_id) == SMALL
    check_all(stand)
    assert stand.task(put.task_id)["checkpoint"]["tries"] == {"a": 1}


@pytest.mark.parametrize("step", LARGE_STEPS)
def test_upload_of_a_large_file(stand: Stand, tmp_path: Path, step: str) -> None:
    put = stand.put(stand.bucket(), "large", LARGE)
    die_and_go_on(stand, tmp_path, put.task_id, step)
    assert stand.stored_bytes(put.version_id) == LARGE
    check_all(stand)
    if step == "upload.after_part":
        assert stand.channels.faulty["a"].calls["put_part"] == 2


@pytest.mark.parametrize("step", ["upload.before_commit", "complete.after_commit"])
def test_upload_that_replaces_a_version(stand: Stand, tmp_path: Path, step: str) -> None:
    bucket = stand.bucket()
    stand.work(stand.put(bucket, "a.txt", SMALL).task_id)
    put = stand.put(bucket, "a.txt", b"newer")
    die_and_go_on(stand, tmp_path, put.task_id, step)
    check_all(stand)
    assert stand.object(bucket, "a.txt").current_version_id == put.version_id
    assert len(stand.channels.keys("a")) == 1


def test_upload_that_fails_over(stand: Stand, tmp_path: Path) -> None:
    """The first channel cannot be used; the process dies when it has just noted that."""
    put = stand.put(stand.bucket(), "large", LARGE)
    root = tmp_path / "channels" / "a"
    root.parent.mkdir(exist_ok=True)
    root.write_bytes(b"a file where a directory should be")
    assert put.task_id is not None
    url = str(stand.db.engine.url)
    assert crash(url, tmp_path, put.task_id, "upload.after_failure") == KILLED
    root.unlink()
    stand.bench.set(put.task_id, state="pending", owner=None, lease_until=None)
    stand.channels.faulty["a"].fail_always(ChannelUnavailable("down"), "put", "create_upload")
    assert stand.work(put.task_id) == "completed"
    assert stand.task(put.task_id)["checkpoint"]["tries"] == {"a": 2, "b": 1}
    stand.channels.faulty["a"].heal()
    check_all(stand)


@pytest.mark.parametrize("step", DELETE_STEPS)
def test_delete(stand: Stand, tmp_path: Path, step: str) -> None:
    bucket = stand.bucket()
    put = stand.put(bucket, "a.txt", SMALL)
    stand.work(put.task_id)
    blob_id = stand.version(put.version_id).blob_id
    stand.remove(bucket, "a.txt")
    (task_id,) = stand.waiting("delete")
    die_and_go_on(stand, tmp_path, task_id, step)
    assert stand.blob(blob_id).state == "deleted"
    check_all(stand)
    assert stand.channels.keys("a") == []


@pytest.mark.parametrize("step", REVIEW_STEPS)
def test_review(stand: Stand, tmp_path: Path, step: str) -> None:
    put = stand.put(stand.bucket(reject_keywords=["forbidden"]), "a.txt", SMALL)
    die_and_go_on(stand, tmp_path, put.task_id, step)
    assert stand.review_of(put.version_id).state == "passed"
    assert stand.work_all("upload") == ["completed"]
    assert stand.stored_bytes(put.version_id) == SMALL
    check_all(stand)
