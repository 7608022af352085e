"""SIGKILL at every named step of the replica protocol; another worker goes on, and nothing is left.

On MariaDB, as the invariants of `blox check` see it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.catalog.invariants.rows import row_breaches
from shared.core.clock import Deadline, utc_now
from tests.integration.handlers.sweeping import passes, sweeper
from tests.integration.handlers.test_crashes import check_all, die_and_go_on
from tests.integration.handlers.test_replica_job import lose, turn
from tests.support.crash import crash
from tests.support.handlers import PART_BYTES, Stand
from tests.support.replica_turn import crash_in_turn
from tests.support.replicas import Copies

pytestmark = pytest.mark.databases("mariadb")

SMALL = b"hello world"
LARGE = os.urandom(PART_BYTES * 3)

STEPS = [
    "replica.claimed",
    "replica.after_intent",
    "replica.after_checkpoint",
    "replica.after_bytes",
    "replica.before_commit",
    "fenced.before_commit",
    "complete.before_commit",
    "complete.after_commit",
    "replica.after_commit",
]


def address(stand: Stand) -> str:
    """Return the database's URL with its password."""
    return stand.db.engine.url.render_as_string(hide_password=False)


def check(stand: Stand) -> None:
    """Hold rows and channels against each other."""
    check_all(stand)
    assert stand.waiting("replica") == []
    breaches = stand.look(
        lambda session: list(
            row_breaches(session, now=utc_now(), late_seconds=0.0, sweep_seconds=0.0)
        )
    )
    assert breaches == []


@pytest.mark.parametrize("step", STEPS)
def test_a_copy(stand: Stand, tmp_path: Path, step: str) -> None:
    copies = Copies(stand)
    blob = copies.store("x", SMALL)
    (task,) = stand.waiting("replica")
    die_and_go_on(stand, tmp_path, task, step)
    assert copies.content(blob, "b") == SMALL
    assert copies.states() == ["completed"]
    check(stand)


@pytest.mark.parametrize("step", ["replica.after_upload_id", "replica.after_part"])
def test_a_copy_in_parts(stand: Stand, tmp_path: Path, step: str) -> None:
    copies = Copies(stand)
    blob = copies.store("x", LARGE)
    (task,) = stand.waiting("replica")
    die_and_go_on(stand, tmp_path, task, step)
    assert copies.content(blob, "b") == LARGE
    if step == "replica.after_part":
        assert stand.task(task)["result"]["method"] == "resumed"
        assert stand.channels.faulty["b"].calls["put_part"] == 2
    check(stand)


@pytest.mark.parametrize("step", ["replica.before_commit", "complete.after_commit"])
def test_a_repair(stand: Stand, tmp_path: Path, step: str) -> None:
    copies = Copies(stand)
    blob = copies.store("x", SMALL)
    stand.work_all("replica")
    lose(copies, blob, "a")
    turn(stand)
    turn(stand)
    (task,) = stand.waiting("replica")
    die_and_go_on(stand, tmp_path, task, step)
    assert copies.content(blob, "a") == SMALL
    check(stand)


def test_nobody_goes_on_when_the_content_is_deleted_meanwhile(stand: Stand, tmp_path: Path) -> None:
    copies = Copies(stand)
    blob = copies.store("x", LARGE)
    (task,) = stand.waiting("replica")
    assert crash(address(stand), tmp_path, task, "replica.after_part") == -9
    stand.remove(copies.bucket, "x")
    stand.bench.set(task, state="pending", owner=None, lease_until=None)
    assert stand.work(task) == "cancelled"
    assert copies.replica(blob).state == "gone"
    passes(sweeper(stand), 3)
    stand.work_all("delete")
    passes(sweeper(stand), 2)
    assert stand.blob(blob).state == "deleted"
    assert copies.replicas() == []
    for name in ("a", "b"):
        assert stand.channels.keys(name) == []
        assert list(stand.channels.faulty[name].inner.list_uploads(deadline=Deadline(5))) == []
    check(stand)


@pytest.mark.parametrize("step", ["replicas.after_page", "replicas.after_report"])
def test_the_job(stand: Stand, tmp_path: Path, step: str) -> None:
    copies = Copies(stand, replicas=())
    blobs = [copies.store(f"k{number}", f"content {number}".encode()) for number in range(2)]
    copies.rules("b")
    if step == "replicas.after_report":
        turn(stand)
        stand.work_all("replica")
        lose(copies, blobs[0], "b")
        turn(stand)
    assert crash_in_turn(address(stand), tmp_path, step) == -9
    turn(stand)
    stand.work_all("replica")
    turn(stand)
    assert turn(stand)["suspects"] == 0
    stand.work_all("replica")
    for number, blob in enumerate(blobs):
        assert copies.content(blob, "b") == f"content {number}".encode()
    check(stand)


def test_the_job_that_lets_go_of_copies(stand: Stand, tmp_path: Path) -> None:
    copies = Copies(stand)
    blobs = [copies.store(f"k{number}", f"content {number}".encode()) for number in range(2)]
    stand.work_all("replica")
    copies.rules()
    assert crash_in_turn(address(stand), tmp_path, "replicas.after_letting_go") == -9
    turn(stand)
    check(stand)
    for blob in blobs:
        assert copies.places(blob) == {"a": ["stored"], "b": ["tombstone"]}
    assert stand.channels.keys("b") == []
