"""SIGKILL at every named step of backup and restore; then another worker goes on, and sweeps.

Afterwards everything is as if nobody had died, and the invariants hold.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.invariants.rows import row_breaches
from shared.catalog.models import BackupRun, Bucket, utc_clock
from shared.catalog.restores.runs import RestoreSpec, open_restore
from shared.core.clock import Deadline
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.backups import TARGET, BackupStand, crash

pytestmark = pytest.mark.databases("mariadb")

KILLED = -9
COMMON = ["fenced.before_commit", "complete.before_commit", "complete.after_commit"]
#: Points between two writes of one step: they are met on directories.
IN_BETWEEN = (
    "backup.after_checkpoint",
    "backup.after_item_commit",
    "backup.after_entries",
    "backup.after_commit",
    "restore.after_look",
    "restore.after_checkpoint",
    "restore.after_commit",
)
RUN_STEPS = [
    "backup.claimed",
    "backup.after_page",
    "backup.after_round",
    "backup.items_ended",
    "backup.after_manifest_intent",
    "backup.after_entries",
    "backup.after_manifest",
    "backup.after_commit",
    "fenced.before_commit",
    "complete.before_commit",
]
#: Met before the items are there.
EARLY = ("backup.claimed", "backup.after_page", "backup.after_round", "fenced.before_commit")
ITEM_STEPS = [
    "backup.item_claimed",
    "backup.after_intent",
    "backup.after_checkpoint",
    "backup.after_upload_id",
    "backup.after_part",
    "backup.after_bytes",
    "backup.before_item_commit",
    "backup.after_item_commit",
    *COMMON,
]
PRUNE_STEPS = [
    "backup.prune_claimed",
    "backup.after_prune_run",
    "backup.after_condemn",
    "backup.after_erase",
    "fenced.before_commit",
]
RESTORE_STEPS = [
    "restore.claimed",
    "restore.after_look",
    "restore.after_intent",
    "restore.after_checkpoint",
    "restore.after_upload_id",
    "restore.after_part",
    "restore.after_bytes",
    "restore.before_commit",
    "restore.after_commit",
    *COMMON,
]
KEY_STEPS = [
    "restore.run_claimed",
    "restore.after_manifest",
    "restore.after_staged",
    "restore.before_key",
    "restore.after_key",
    "restore.before_run_commit",
    "restore.after_run_commit",
    "fenced.before_commit",
]
SEARCH_STEPS = ["restore.before_page", "restore.after_page"]


def steps(stand: BackupStand, names: list[str]) -> list[str]:
    """Return the points to die at; over a network those of the protocol's own steps."""
    if stand.specs is None:
        return names
    return [name for name in names if name not in (*COMMON[:2], *IN_BETWEEN)]


ANYWHERE = pytest.mark.parametrize(
    "anywhere", ["file", pytest.param("rgw", marks=pytest.mark.needs_root)], indirect=True
)


def die_and_go_on(stand: BackupStand, root: Path, task_id: int | None, step: str) -> None:
    """Let a process die in the task; bring the task back as the lease scan does, sweeps between."""
    assert task_id is not None
    assert crash(stand, root, task_id, step) == KILLED, step
    passes(sweeper(stand), 2)
    if stand.state(task_id) == "completed":
        return
    assert stand.state(task_id) == "running", step
    stand.bench.set(task_id, state="pending", owner=None, lease_until=None)
    assert stand.work(task_id) in ("completed", "scheduled"), step


def check_all(stand: BackupStand) -> None:
    """Hold the rows against each other and against what is on the channels."""
    sweeps = sweeper(stand)
    passes(sweeps, 3)
    stand.work_all("delete")
    passes(sweeps, 2)

    def look(session: Session) -> list[object]:
        now = session.scalar(sa.select(utc_clock()))
        assert now is not None
        return list(row_breaches(session, now=now, late_seconds=0.0, sweep_seconds=0.0))

    assert stand.look(look) == []
    contents = [*stand.contents(), *stand.contents(kind="manifest")]
    assert {one.state for one in contents} <= {"stored", "tombstone"}
    held = {one.key for one in contents if one.state == "stored"}
    assert set(stand.channels.keys(TARGET)) == held
    for channel in stand.channels.names():
        inner = stand.channels.faulty[channel].inner
        assert list(inner.list_uploads(deadline=Deadline(5))) == []
    for channel in ("a", "b"):
        named = {
            one.key for one in stand.locations() if (one.channel, one.state) == (channel, "stored")
        }
        assert set(stand.channels.keys(channel)) == named
    assert stand.pins() == []
    runs = stand.look(lambda session: list(session.scalars(sa.select(BackupRun))))
    for run in runs:
        if run.state == "complete":
            for line in stand.manifest(run)[1:-1]:
                assert len(stand.channels.read(TARGET, line["target_key"])) == line["size"]


@ANYWHERE
def test_run(anywhere: BackupStand, tmp_path: Path) -> None:
    stand = anywhere
    for step in steps(stand, RUN_STEPS):
        bucket = stand.backed_up(bucket_name(step))
        for number in range(4):
            stand.stored(bucket, str(number), step.encode() + b"%d" % number)
        run = stand.begin(bucket)
        is_early = step in EARLY
        if is_early:
            die_and_go_on(stand, tmp_path, run.task_id, step)
        else:
            assert stand.work(run.task_id) == "scheduled", step
        for item in stand.items(run.id):
            assert stand.work(item.task_id) == "completed", step
        if not is_early:
            die_and_go_on(stand, tmp_path, run.task_id, step)
        stand.carry_on()
        done = stand.run_row(run.id)
        assert (done.state, len(stand.manifest(done))) == ("complete", 6), step
    check_all(stand)


@ANYWHERE
def test_item(anywhere: BackupStand, tmp_path: Path) -> None:
    stand = anywhere
    for step in steps(stand, ITEM_STEPS):
        bucket = stand.backed_up(bucket_name(step))
        body = os.urandom(large(stand))
        stand.stored(bucket, "large", body)
        run = stand.begin(bucket)
        stand.work(run.task_id)
        (item,) = stand.items(run.id)
        die_and_go_on(stand, tmp_path, item.task_id, step)
        stand.carry_on()
        done = stand.run_row(run.id)
        assert done.state == "complete", step
        (line,) = stand.manifest(done)[1:-1]
        assert stand.channels.read(TARGET, line["target_key"]) == body
    check_all(stand)


@ANYWHERE
def test_prune(anywhere: BackupStand, tmp_path: Path) -> None:
    stand = anywhere
    for step in PRUNE_STEPS:
        bucket = stand.backed_up(bucket_name(step))
        stand.stored(bucket, "k", step.encode() + b"1")
        first = stand.back_up(bucket)
        stand.stored(bucket, "k", step.encode() + b"2")
        second = stand.back_up(bucket)
        stand.backed_up(bucket_name(step), keep_runs=1)
        (task_id,) = stand.enqueue_pruning(bucket)
        die_and_go_on(stand, tmp_path, task_id, step)
        stand.carry_on()
        states = [stand.run_row(run.id).state for run in (first, second)]
        assert states == ["pruned", "complete"], step
        (line,) = stand.manifest(stand.run_row(second.id))[1:-1]
        assert stand.channels.read(TARGET, line["target_key"]) == step.encode() + b"2"
    check_all(stand)
    assert len(stand.channels.keys(TARGET)) == 2 * len(PRUNE_STEPS)


@ANYWHERE
def test_restored_blob(anywhere: BackupStand, tmp_path: Path) -> None:
    stand = anywhere
    for step in steps(stand, RESTORE_STEPS):
        bucket = stand.backed_up(bucket_name(step))
        body = os.urandom(large(stand))
        version = stand.stored(bucket, "large", body)
        stand.back_up(bucket)
        current = stand.object(bucket, "large").current_version_id
        stand.lose(version)
        die_and_go_on(stand, tmp_path, stand.report(version), step)
        assert stand.stored_bytes(version) == body, step
        assert stand.object(bucket, "large").current_version_id == current, step
        assert stand.losses()[-1].state == "restored", step
    check_all(stand)


@ANYWHERE
def test_restored_keys(anywhere: BackupStand, tmp_path: Path) -> None:
    stand = anywhere
    for step in KEY_STEPS:
        bucket = stand.backed_up(bucket_name(step))
        bodies = [step.encode() + b"%d" % number for number in range(3)]
        for number, body in enumerate(bodies):
            stand.stored(bucket, str(number), body)
        stand.back_up(bucket)
        for number in range(2):
            stand.remove(bucket, str(number))
        stand.work_all("delete")
        restore_id, task_id = begin(stand, bucket, RestoreSpec())
        die_and_go_on(stand, tmp_path, task_id, step)
        assert stand.work_all("upload") == ["completed", "completed"], step
        for number, body in enumerate(bodies):
            current = stand.object(bucket, str(number)).current_version_id
            assert current is not None, step
            assert stand.stored_bytes(current) == body, step
        outcomes = stand.outcomes(restore_id)
        assert outcomes == {"0": "restored", "1": "restored", "2": "same"}, step
        counts = stand.restore_row(restore_id).counts or {}
        assert (counts["entries"], counts["restored"], counts["same"]) == (3, 2, 1), step
    check_all(stand)
    assert list(stand.staging.old(minimum_age_seconds=0.0, deadline=Deadline(5))) == []


def test_search(stand: BackupStand, tmp_path: Path) -> None:
    for step in SEARCH_STEPS:
        bucket = stand.backed_up(bucket_name(step))
        bodies = [step.encode() + b"%d" % number for number in range(4)]
        versions = [stand.stored(bucket, str(place), body) for place, body in enumerate(bodies)]
        stand.back_up(bucket)
        for version in versions:
            stand.lose(version)
        _, task_id = begin(stand, bucket, RestoreSpec(mode="content"))
        die_and_go_on(stand, tmp_path, task_id, step)
        assert stand.work_all("restore") == ["completed"] * 4, step
        for version, body in zip(versions, bodies, strict=True):
            assert stand.stored_bytes(version) == body, step
    check_all(stand)


def large(stand: BackupStand) -> int:
    """Return a size that takes two parts."""
    found = stand.channels.find(TARGET)
    assert found is not None
    return found[0].part_bytes + 5


def bucket_name(step: str) -> str:
    """Return a bucket's name for each step, whose contents no other one has."""
    return step.replace("_", "-")


def begin(stand: BackupStand, bucket: int, spec: RestoreSpec) -> tuple[int, int]:
    """Open a restore; returns its id and its task."""

    def write(session: Session) -> tuple[int, int]:
        row = session.get_one(Bucket, bucket)
        restore = open_restore(session, stand.catalogue, row, spec, at=None)
        assert restore.task_id is not None
        return restore.id, restore.task_id

    return stand.db.run_session(write)
