"""Continuous backups: contents are on the target before any run, and runs only name them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.following import ensure_following
from shared.catalog.models import BackupItem, BackupRun, Bucket
from tests.support.backups import TARGET, BackupStand


def following(stand: BackupStand, **rule: Any) -> int:
    """Make a bucket with a continuous rule, as a PUT of the bucket does."""
    bucket_id = stand.backed_up(mode="continuous", **rule)
    stand.db.run_session(
        lambda session: ensure_following(session, session.get_one(Bucket, bucket_id))
    )
    return bucket_id


def items(stand: BackupStand) -> list[BackupItem]:
    return stand.look(lambda session: list(session.scalars(sa.select(BackupItem))))


def test_content_is_copied_as_it_becomes_live(stand: BackupStand) -> None:
    bucket = following(stand)
    stand.stored(bucket, "k", b"k")
    (task,) = stand.waiting("backup")
    assert stand.work(task) == "completed"
    (content,) = stand.contents("stored")
    assert stand.channels.read(TARGET, content.key) == b"k"
    assert items(stand) == []
    assert stand.pins() == []
    stand.put(bucket, "again", b"k")
    assert stand.waiting("backup") == []
    run = stand.back_up(bucket)
    assert (run.counts or {})["reused"] == 1
    assert (run.counts or {})["copied"] == 0
    assert len(stand.manifest(run)) == 4


def test_what_goes_before_it_is_copied_is_no_loss(stand: BackupStand) -> None:
    bucket = following(stand)
    stand.stored(bucket, "k", b"k")
    stand.remove(bucket, "k")
    assert stand.work_all("delete") == ["completed"]
    (task,) = stand.waiting("backup")
    assert stand.work(task) == "cancelled"
    assert items(stand) == []
    assert stand.losses() == []


def test_its_copies_are_not_pruned_before_a_run_could_name_them(stand: BackupStand) -> None:
    bucket = following(stand, interval_seconds=3600)
    stand.stored(bucket, "k", b"k")
    stand.carry_on()
    assert stand.prune_target(bucket) == ["scheduled"]
    assert len(stand.contents("stored")) == 1


def test_the_run_that_never_ends_is_made_once(stand: BackupStand) -> None:
    bucket = following(stand)

    def again(session: Session) -> int:
        ensure_following(session, session.get_one(Bucket, bucket))
        return session.scalar(sa.select(sa.func.count()).select_from(BackupRun)) or 0

    assert stand.db.run_session(again) == 1
