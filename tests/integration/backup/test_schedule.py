"""What the scheduler does for backups: one run per slot, overdue pins, losses without tasks."""

from __future__ import annotations

import datetime as dt

import pytest
import sqlalchemy as sa

from services.scheduler.backups import BackupJob, due_slot
from shared.catalog.backups.runs import time_slot
from shared.catalog.models import BackupRun, Bucket, Restore, utc_now
from shared.core.clock import Deadline
from tests.support.backups import TARGET, BackupStand
from tests.support.outbox import Thread

pytestmark = pytest.mark.databases("mariadb")


def job(stand: BackupStand) -> BackupJob:
    return BackupJob(stand.db, stand.catalogue)


def runs(stand: BackupStand) -> list[BackupRun]:
    return stand.look(
        lambda session: list(session.scalars(sa.select(BackupRun).order_by(BackupRun.id)))
    )


def test_slots_are_aligned_to_utc() -> None:
    moment = dt.datetime(2026, 3, 1, 13, 45, 59)
    assert time_slot(moment, 3600) == "2026-03-01T13:00:00Z"
    assert time_slot(moment, 86_400) == "2026-03-01T00:00:00Z"


def test_a_due_bucket_gets_one_run_however_many_schedulers_look(stand: BackupStand) -> None:
    bucket = stand.backed_up(interval_seconds=366 * 86_400)
    stand.bucket("without")
    stand.stored(bucket, "k", b"k")
    looks = [Thread(lambda: job(stand).run_once()) for _ in range(4)]
    opened = [look.join_answer()["opened"] for look in looks]
    assert sum(opened) == len(runs(stand)) == 1
    stand.carry_on()
    assert [run.state for run in runs(stand)] == ["complete"]
    assert stand.look(lambda session: due_slot(session, bucket)) is None
    assert job(stand).run_once()["opened"] == 0


def test_a_new_slot_waits_until_the_last_run_has_ended(stand: BackupStand) -> None:
    bucket = stand.backed_up(interval_seconds=366 * 86_400)
    stand.begin(bucket)
    assert job(stand).run_once()["opened"] == 0
    stand.carry_on()
    assert job(stand).run_once()["opened"] == 1


def test_pins_held_for_a_day_go_with_their_run(stand: BackupStand) -> None:
    bucket = stand.backed_up(interval_seconds=366 * 86_400)
    for number in range(3):
        stand.stored(bucket, str(number), b"%d" % number)
    run = stand.begin(bucket)
    stand.work(run.task_id)
    assert len(stand.pins()) == 3
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(BackupRun).values(pins_until=utc_now(-1)))
    counts = job(stand).run_once()
    assert counts["overdue"] == 1
    assert stand.pins() == []
    assert (stand.run_row(run.id).state, stand.run_row(run.id).error_code) == (
        "failed",
        "pins_expired",
    )
    assert stand.state(run.task_id) == "cancelled"
    assert {item.state for item in stand.items(run.id)} == {"cancelled"}


def test_losses_that_had_no_task_get_one_where_restores_are_served(stand: BackupStand) -> None:
    bucket = stand.backed_up(interval_seconds=366 * 86_400)
    version = stand.stored(bucket, "k", b"k")
    off = type(stand.catalogue)(
        tasks=stand.catalogue.tasks,
        kinds=stand.catalogue.kinds,
        grace_seconds=0.0,
        switched_off=frozenset({"restore", "backup"}),
    )
    on, stand.catalogue = stand.catalogue, off
    assert stand.report(version) is None
    assert BackupJob(stand.db, off).run_once() == {}
    assert (runs(stand), stand.waiting("restore")) == ([], [])
    stand.catalogue = on
    assert job(stand).run_once()["losses_tried"] == 1
    assert len(stand.waiting("restore")) == 1
    assert job(stand).run_once()["losses_tried"] == 0
    assert job(stand).count_losses()["open"] == 1


def test_a_bucket_whose_rule_is_taken_back_is_left_alone(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.db.run_session(lambda session: setattr(session.get_one(Bucket, bucket), "backup", None))
    assert job(stand).run_once()["opened"] == 0


def test_buckets_are_counted_by_what_their_newest_backup_is(stand: BackupStand) -> None:
    for name in ("failed", "incomplete", "whole"):
        bucket = stand.backed_up(name)
        version = stand.stored(bucket, "k", name.encode())
        if name == "incomplete":
            stand.stored(bucket, "kept", b"kept")
            stand.lose(version)
        run = stand.back_up(bucket)
        if name == "failed":
            with stand.db.engine.begin() as connection:
                connection.execute(
                    sa.update(BackupRun).where(BackupRun.id == run.id).values(state="failed")
                )
    assert job(stand).count_backups() == {"failed": 1, "incomplete": 1, "whole": 1}


def test_keys_that_a_restore_could_not_bring_back_are_counted_for_a_day(
    stand: BackupStand,
) -> None:
    bucket = stand.backed_up()
    for key in ("lost", "kept"):
        stand.stored(bucket, key, key.encode())
    stand.back_up(bucket)
    for key in ("lost", "kept"):
        stand.remove(bucket, key)
    stand.work_all("delete")
    content = stand.contents("stored")[0]
    stand.channels.faulty[TARGET].inner.delete(content.key, deadline=Deadline(10))
    assert job(stand).count_unrestored() == 0
    restore = stand.bring_back(bucket)
    assert (restore.counts or {})["unrecoverable"] == 1
    assert job(stand).count_unrestored() == 1
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Restore).values(ended_at=utc_now(-90_000)))
    assert job(stand).count_unrestored() == 0
