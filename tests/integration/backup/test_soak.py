"""Writes, deletions, backups, prunings, cancels, losses and restores at once, without any grace.

What a complete manifest names must be there at every moment, and nothing may be left in the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from services.scheduler.backups import BackupJob
from shared.catalog.backups.runs import cancel_run
from shared.catalog.invariants.rows import row_breaches
from shared.catalog.models import BackupRun, BackupRunState, utc_clock
from shared.core.clock import Deadline
from shared.core.errors import BloxError
from tests.integration.handlers.sweeping import passes, sweeper
from tests.integration.handlers.test_soak import lose_lease
from tests.support.backups import TARGET, BackupStand
from tests.support.outbox import Thread

pytestmark = pytest.mark.databases("mariadb")

CONTENTS = [b"content %d" % number for number in range(8)]
KEYS = ["a", "b", "c", "d"]
OPERATIONS = 30
QUEUES = ("upload", "delete", "backup", "restore")


@pytest.fixture
def crowd(blox_url: str, tmp_path: Path, stand: BackupStand) -> Iterator[list[BackupStand]]:
    made = [BackupStand(blox_url, tmp_path, node=f"worker-{n}") for n in range(3)]
    yield made
    for one in made:
        one.close()


def waiting(stand: BackupStand) -> list[int]:
    return [task_id for queue in QUEUES for task_id in stand.waiting(queue)]


def work(stand: BackupStand, done: threading.Event) -> None:
    """Take waiting tasks, whoever else does, until nothing is left."""
    dice = random.Random(stand.bench.context.node)
    while True:
        found = waiting(stand)
        if not found:
            if done.is_set():
                return
            done.wait(0.01)
            continue
        try:
            execution = stand.claim(dice.choice(found))
        except AssertionError:
            continue  # Another was faster.
        if dice.random() < 0.1:
            lose_lease(stand, execution.task.id)
        with contextlib.suppress(BloxError):
            stand.run(execution)


def write(stand: BackupStand, bucket: int, name: str) -> dict[str, bytes | None]:
    """Put and delete; returns what the keys hold in the end."""
    dice = random.Random(name)
    last: dict[str, bytes | None] = {}
    for _ in range(OPERATIONS):
        key = f"{name}-{dice.choice(KEYS)}"
        if dice.random() < 0.3:
            stand.remove(bucket, key)
            last[key] = None
        else:
            last[key] = dice.choice(CONTENTS)
            stand.put(bucket, key, last[key] or b"")
    return last


def back_up(stand: BackupStand, bucket: int, done: threading.Event) -> None:
    """Start backups, cancel some, prune all the time, look into what is complete."""
    dice = random.Random(1)
    job = BackupJob(stand.db, stand.catalogue)
    while not done.is_set():
        with contextlib.suppress(BloxError):
            run = stand.begin(bucket)
            if dice.random() < 0.3:
                stand.db.run_session(
                    lambda session, one=run.id: cancel_run(  # type: ignore[misc]
                        session, stand.catalogue, session.get_one(BackupRun, one)
                    )
                )
        stand.enqueue_pruning(bucket)
        job.run_once()
        look_into(stand)
        done.wait(0.05)


def look_into(stand: BackupStand) -> None:
    """Read what the newest complete manifest names; a run may be pruned while it is read."""
    statement = (
        sa.select(BackupRun)
        .where(BackupRun.state == BackupRunState.COMPLETE)
        .order_by(BackupRun.id.desc())
        .limit(1)
    )
    run = stand.look(lambda session: session.scalars(statement).one_or_none())
    if run is None:
        return
    try:
        for line in stand.manifest(run)[1:-1]:
            content = stand.channels.read(TARGET, line["target_key"])
            assert hashlib.sha256(content).hexdigest() == line["sha256"]
    except BloxError:
        assert stand.run_row(run.id).state == BackupRunState.PRUNED


def finished_runs(stand: BackupStand) -> list[int]:
    """Return the runs that came to their manifest."""
    statement = sa.select(BackupRun.id).where(BackupRun.manifest_id.is_not(None))
    return stand.look(lambda session: list(session.scalars(statement)))


def eventually_nothing(act: Callable[[], object], stand: BackupStand) -> None:
    for _ in range(50):
        act()
        if not waiting(stand):
            return
    raise AssertionError(waiting(stand))


def test_nothing_that_a_manifest_needs_goes_and_nothing_is_left(
    stand: BackupStand, crowd: list[BackupStand]
) -> None:
    bucket = stand.backed_up(keep_runs=2, interval_seconds=366 * 86_400)
    done, stop = threading.Event(), threading.Event()

    def sweep() -> None:
        sweeps = sweeper(stand, staging_age_seconds=3600.0)
        while not stop.is_set():
            assert sweeps.run_once(deadline=Deadline(30), check=lambda: None).errors == {}
            stop.wait(0.1)

    writers = [Thread(lambda one=name: write(stand, bucket, one)) for name in ("ann", "bob")]  # type: ignore[misc]
    others = [Thread(lambda: back_up(stand, bucket, done)), Thread(sweep)]
    workers = [Thread(lambda one=one: work(one, done)) for one in crowd]  # type: ignore[misc]
    last: dict[str, bytes | None] = {}
    for writer in writers:
        last |= writer.join_answer(120)
    done.set()
    others[0].join_answer(60)
    for worker in workers:
        worker.join_answer(120)
    stop.set()
    others[1].join_answer(60)

    assert len(finished_runs(stand)) >= 2
    job = BackupJob(stand.db, stand.catalogue)
    for _ in range(3):
        job.run_once()
        eventually_nothing(lambda: [stand.work(one) for one in waiting(stand)], stand)
        passes(sweeper(stand), 2)
    final = stand.back_up(bucket)
    eventually_nothing(lambda: [stand.work(one) for one in waiting(stand)], stand)
    passes(sweeper(stand), 3)
    assert final.state == "complete"
    named = {line["key"]: line["sha256"] for line in stand.manifest(final)[1:-1]}
    living = {key: body for key, body in last.items() if body is not None}
    assert named == {key: hashlib.sha256(body).hexdigest() for key, body in living.items()}
    look_into(stand)

    def look(session: Session) -> list[object]:
        now = session.scalar(sa.select(utc_clock()))
        assert now is not None
        return list(row_breaches(session, now=now, late_seconds=0.0, sweep_seconds=0.0))

    assert stand.look(look) == []
    assert stand.pins() == []
    contents = [*stand.contents(), *stand.contents(kind="manifest")]
    assert {one.state for one in contents} <= {"stored", "tombstone"}
    held = {one.key for one in contents if one.state == "stored"}
    assert set(stand.channels.keys(TARGET)) == held
    # And with all of it gone, everything comes back.
    stand.empty("a")
    stand.empty("b")
    stand.bring_back(bucket, mode="content")
    eventually_nothing(lambda: [stand.work(one) for one in waiting(stand)], stand)
    for key, body in living.items():
        current = stand.object(bucket, key).current_version_id
        assert current is not None
        assert stand.stored_bytes(current) == body
