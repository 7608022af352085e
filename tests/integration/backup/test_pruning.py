"""Retention: which runs go, and that what a manifest or an open run needs never does."""

from __future__ import annotations

import datetime as dt
from hashlib import sha256

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.contents import lock_content_ids
from shared.catalog.backups.damage import note_damage
from shared.catalog.models import BackupContent, BackupRun, Bucket
from shared.core.clock import Deadline
from shared.storage.body import Body
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.backups import TARGET, BackupStand
from tests.support.outbox import Thread

pytestmark = pytest.mark.databases("mariadb")


def age(stand: BackupStand, run_id: int, days: float) -> None:
    """Let a run's snapshot be older."""
    with stand.db.engine.begin() as connection:
        moment = stand.run_row(run_id).snapshot_at
        assert moment is not None
        connection.execute(
            sa.update(BackupRun)
            .where(BackupRun.id == run_id)
            .values(snapshot_at=moment - dt.timedelta(days=days))
        )


def test_surplus_runs_go_and_with_them_what_only_they_named(stand: BackupStand) -> None:
    bucket = stand.backed_up(keep_runs=2)
    stand.stored(bucket, "kept", b"kept")
    stand.stored(bucket, "k", b"1")
    runs = [stand.back_up(bucket)]
    for body in (b"2", b"3"):
        stand.stored(bucket, "k", body)
        runs.append(stand.back_up(bucket))
    assert [stand.run_row(run.id).state for run in runs] == ["pruned", "complete", "complete"]
    held = {stand.channels.read(TARGET, one.key) for one in stand.contents("stored")}
    assert held == {b"kept", b"2", b"3"}
    assert len(stand.contents("tombstone")) == 1
    assert len(stand.contents("stored", "manifest")) == 2
    assert len(stand.channels.keys(TARGET)) == 5
    assert stand.items(runs[0].id) == []
    for run in runs[1:]:
        for line in stand.manifest(run)[1:-1]:
            assert stand.channels.read(TARGET, line["target_key"])


def test_old_runs_go_but_never_the_newest(stand: BackupStand) -> None:
    bucket = stand.backed_up(keep_days=3)
    stand.stored(bucket, "k", b"1")
    first = stand.back_up(bucket)
    stand.stored(bucket, "k", b"2")
    second = stand.back_up(bucket)
    age(stand, first.id, 10)
    age(stand, second.id, 5)
    assert stand.prune_target(bucket) == ["completed"]
    assert stand.run_row(first.id).state == "pruned"
    assert stand.run_row(second.id).state == "complete"


def test_the_grace_is_waited_for_without_counting(stand: BackupStand) -> None:
    bucket = stand.backed_up(keep_runs=1, grace_seconds=3600)
    stand.stored(bucket, "k", b"1")
    stand.back_up(bucket)
    stand.stored(bucket, "k", b"2")
    begun = stand.begin(bucket)
    for _ in range(3):
        stand.work(stand.waiting("backup")[-1])
    assert stand.run_row(begun.id).state == "complete"
    (prune,) = stand.waiting("backup")
    assert stand.task(prune)["attempt"] == 0
    assert stand.work(prune) == "scheduled"
    assert len(stand.contents("stored")) == 2
    with stand.db.engine.begin() as connection:
        past = stand.contents()[0].created_at - dt.timedelta(hours=2)
        connection.execute(
            sa.update(BackupContent)
            .where(BackupContent.unneeded_at.is_not(None))
            .values(unneeded_at=past)
        )
    assert stand.work(prune) == "completed"
    assert len(stand.contents("stored")) == 1


def test_a_cancelled_runs_copies_stay_for_the_grace_and_go_after_it(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"k")
    run = stand.begin(bucket)
    stand.work(run.task_id)
    stand.work(stand.items(run.id)[0].task_id)
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(BackupRun).values(state="cancelled", pins_until=None))
    stand.work(run.task_id)
    assert stand.prune_target(bucket) == ["completed"]
    assert stand.contents("stored") == []
    assert stand.channels.keys(TARGET) == []
    assert stand.items(run.id) == []


def test_an_open_run_keeps_what_it_has_named(stand: BackupStand) -> None:
    bucket = stand.backed_up(keep_runs=1)
    stand.stored(bucket, "a", b"a")
    stand.stored(bucket, "b", b"b")
    run = stand.begin(bucket)
    stand.work(run.task_id)
    stand.work(stand.items(run.id)[0].task_id)
    assert "completed" in stand.prune_target(bucket)
    assert len(stand.contents("stored")) >= 1
    stand.carry_on()
    assert stand.run_row(run.id).state == "complete"


def test_another_buckets_manifest_keeps_what_both_name(stand: BackupStand) -> None:
    first = stand.backed_up("first", keep_runs=1)
    second = stand.backed_up("second", keep_runs=1)
    stand.stored(first, "k", b"shared")
    stand.stored(second, "k", b"shared")
    stand.back_up(first)
    other = stand.back_up(second)
    assert (other.counts or {})["reused"] == 1
    stand.remove(first, "k")
    stand.back_up(first)
    assert [stand.channels.read(TARGET, one.key) for one in stand.contents("stored")] == [b"shared"]


def test_a_run_that_names_a_content_meets_its_pruning_under_the_lock(stand: BackupStand) -> None:
    """The last manifest that names it is pruned while a run is about to name it once more."""
    bucket = stand.backed_up(keep_runs=1)
    stand.stored(bucket, "k", b"k")
    first = stand.back_up(bucket)
    (content,) = stand.contents("stored")
    run = stand.begin(bucket)
    with stand.db.engine.begin() as connection:
        connection.execute(
            sa.update(BackupRun).where(BackupRun.id == first.id).values(state="pruned")
        )
    with stand.db.engine.connect() as connection, connection.begin():
        lock_content_ids(Session(connection), [content.id])
        naming = Thread(lambda: stand.work(run.task_id))
        stand.bench.await_lock_wait()
    assert naming.join_answer() == "completed"
    stand.carry_on()
    assert stand.prune_target(bucket) == ["completed"]
    done = stand.run_row(run.id)
    for line in stand.manifest(done)[1:-1]:
        assert stand.channels.read(TARGET, line["target_key"]) == b"k"


def test_what_the_target_has_lost_is_found_and_copied_anew(
    stand: BackupStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.backup.auditing.random.randrange", lambda _most: 0)
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"k")
    stand.stored(bucket, "kept", b"kept")
    stand.back_up(bucket)
    (lost, _) = stand.contents("stored")
    stand.channels.faulty[TARGET].inner.delete(lost.key, deadline=Deadline(10))
    assert stand.prune_target(bucket) == ["completed"]
    assert [one.state for one in stand.contents()] == ["damaged", "stored"]
    run = stand.back_up(bucket)
    assert ((run.counts or {})["copied"], (run.counts or {})["reused"]) == (1, 1)
    for line in stand.manifest(run)[1:-1]:
        assert stand.channels.read(TARGET, line["target_key"])


def test_probes_of_a_target_that_is_gone_wait_until_it_is_back(stand: BackupStand) -> None:
    bucket = stand.backed_up(keep_runs=1)
    for body in (b"1", b"2"):
        stand.stored(bucket, "k", body)
        stand.back_up(bucket)
    (tombstone,) = stand.contents("tombstone")
    stand.channels.faulty[TARGET].inner.put(
        tombstone.key, Body(b"late"), sha256=sha256(b"late").hexdigest(), deadline=Deadline(10)
    )
    stand.channels.gone.add(TARGET)
    for _ in range(2):
        counts = passes(sweeper(stand)).counts["backups"]
        assert counts["probed"] == 0
    assert stand.contents("tombstone")[0].probed_at is None
    stand.channels.gone.clear()
    passes(sweeper(stand))
    assert stand.contents("tombstone")[0].probed_at is not None
    assert tombstone.key not in stand.channels.keys(TARGET)


def test_contents_condemned_first_are_copied_anew(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"k")
    stand.back_up(bucket)
    with stand.db.engine.begin() as connection:
        connection.execute(
            sa.update(BackupContent)
            .where(BackupContent.kind == "content")
            .values(state="condemned")
        )
    run = stand.back_up(bucket)
    assert (run.counts or {})["copied"] == 1
    passes(sweeper(stand), 2)
    assert [one.state for one in stand.contents()] == ["tombstone", "stored"]
    for line in stand.manifest(run)[1:-1]:
        assert stand.channels.read(TARGET, line["target_key"]) == b"k"


def mark(stand: BackupStand, content_id: int) -> None:
    """Take a content for damaged whose bytes are right."""
    assert stand.db.run_session(
        lambda session: note_damage(session, content_id, detail="a bad read-back")
    )


def test_a_mark_of_damage_that_was_wrong_is_taken_back_by_the_next_audit(
    stand: BackupStand,
) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"k")
    stand.back_up(bucket)
    (content,) = stand.contents()
    (manifest,) = stand.contents(kind="manifest")
    for one in (content, manifest):
        mark(stand, one.id)
    assert stand.prune_target(bucket) == ["completed"]
    assert [one.state for one in stand.contents()] == ["stored"]
    assert [one.state for one in stand.contents(kind="manifest")] == ["stored"]


def test_what_was_copied_anew_meanwhile_is_kept_beside_what_older_manifests_name(
    stand: BackupStand,
) -> None:
    bucket = stand.backed_up(keep_runs=2)
    stand.stored(bucket, "k", b"k")
    first = stand.back_up(bucket)
    mark(stand, stand.contents()[0].id)
    second = stand.back_up(bucket)
    assert (second.counts or {})["copied"] == 1
    assert [one.state for one in stand.contents()] == ["spare", "stored"]
    for run in (first, second):
        (line,) = stand.manifest(run)[1:-1]
        assert stand.channels.read(TARGET, line["target_key"]) == b"k"
    # The spare one goes with the manifest that names it.
    stand.back_up(bucket)
    assert [one.state for one in stand.contents()] == ["tombstone", "stored"]


def test_what_stays_damaged_is_not_read_again_at_once(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"k")
    stand.back_up(bucket)
    (content,) = stand.contents()
    stand.channels.faulty[TARGET].inner.delete(content.key, deadline=Deadline(10))
    mark(stand, content.id)
    assert stand.prune_target(bucket) == ["completed"]
    (looked,) = stand.contents()
    assert (looked.state, looked.tries) == ("damaged", 1)
    assert stand.prune_target(bucket) == ["completed"]
    assert stand.contents()[0].tries == 1


def test_the_newest_whole_backup_stays_behind_newer_ones_that_lack_contents(
    stand: BackupStand,
) -> None:
    bucket = stand.backed_up(keep_runs=1)
    stand.stored(bucket, "k", b"1")
    whole = stand.back_up(bucket)
    lost = stand.stored(bucket, "k", b"2")
    stand.lose(lost)
    runs = [stand.back_up(bucket) for _ in range(2)]
    assert [(run.counts or {})["lost"] for run in runs] == [1, 1]
    states = [stand.run_row(run.id).state for run in (whole, *runs)]
    assert states == ["complete", "pruned", "complete"]
    (line,) = stand.manifest(whole)[1:-1]
    assert stand.channels.read(TARGET, line["target_key"]) == b"1"
    stand.stored(bucket, "k", b"3")
    stand.back_up(bucket)
    assert stand.run_row(whole.id).state == "pruned"


@pytest.mark.parametrize("mode", ["runs", "continuous"])
def test_the_grace_that_stood_is_kept_when_the_rule_goes(stand: BackupStand, mode: str) -> None:
    bucket = stand.backed_up(grace_seconds=3600.0, mode=mode)
    stand.stored(bucket, "k", b"k")
    begun = stand.begin(bucket)
    while stand.run_row(begun.id).state == "open":
        stand.work(stand.waiting("backup")[-1])
    stand.work_all("backup")
    stand.db.run_session(lambda session: setattr(session.get_one(Bucket, bucket), "backup", None))
    with stand.db.engine.begin() as connection:
        connection.execute(
            sa.update(BackupRun).where(BackupRun.id == begun.id).values(state="pruned")
        )
    assert stand.prune_target(bucket) == ["scheduled"]
    assert len(stand.contents("stored")) == 1
    stand.db.run_session(lambda session: session.delete(session.get_one(Bucket, bucket)))
    assert stand.prune_target(bucket) == ["scheduled"]
    with stand.db.engine.begin() as connection:
        past = stand.contents()[0].created_at - dt.timedelta(hours=200)
        connection.execute(sa.update(BackupContent).values(unneeded_at=past))
    assert stand.prune_target(bucket) == ["completed"]
    assert stand.contents("stored") == []
