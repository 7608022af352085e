"""Backup runs: what is copied, what is only named, the manifest, pins, and what ends a run."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
from dataclasses import replace
from functools import partial

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backup_policy import BackupPolicy
from shared.catalog.backups.damage import note_damage
from shared.catalog.backups.pins import release_page, runs_with_pins
from shared.catalog.backups.runs import cancel_run, fail_overdue, open_run
from shared.catalog.models import BackupRun, BackupRunState, Bucket, Version, utc_now
from shared.core.clock import Deadline
from shared.core.errors import ConflictError
from shared.storage.errors import ChannelUnavailable
from tests.support.backups import TARGET, BackupStand
from tests.support.handlers import PART_BYTES, TENANT

DOWN = ChannelUnavailable("down")


def test_a_run_copies_each_content_once_and_writes_its_manifest_last(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    contents = {f"{number}.txt": b"content %d" % number for number in range(5)}
    versions = {key: stand.stored(bucket, key, body) for key, body in contents.items()}
    versions["same.txt"] = stand.stored(bucket, "same.txt", contents["0.txt"])
    run = stand.back_up(bucket)

    assert run.state == "complete"
    assert len(stand.items(run.id)) == 5
    assert run.counts is not None
    assert (run.counts["copied"], run.counts["reused"], run.counts["versions"]) == (5, 0, 6)
    head, *lines, tail = stand.manifest(run)
    assert (head["tenant"], head["bucket"], head["run"]) == (TENANT, "photos", run.id)
    assert (tail["entries"], len(lines)) == (6, 6)
    for line in lines:
        body = contents.get(line["key"], contents["0.txt"])
        assert line["version"] == versions[line["key"]]
        assert line["sha256"] == hashlib.sha256(body).hexdigest()
        assert stand.channels.read(TARGET, line["target_key"]) == body
    (manifest,) = stand.contents("stored", "manifest")
    text = stand.channels.read(TARGET, manifest.key)
    assert run.manifest_sha256 == hashlib.sha256(text).hexdigest() == manifest.sha256
    assert stand.pins() == []
    assert len(stand.channels.keys(TARGET)) == 6


def test_the_next_run_copies_only_what_is_new(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "old.txt", b"old")
    stand.back_up(bucket)
    stand.stored(bucket, "new.txt", b"new")
    run = stand.back_up(bucket)
    assert run.counts is not None
    assert (run.counts["copied"], run.counts["reused"]) == (1, 1)
    assert {line["key"] for line in stand.manifest(run)[1:-1]} == {"old.txt", "new.txt"}
    assert len(stand.contents("stored")) == 2


def test_large_content_goes_in_parts(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    body = os.urandom(3 * PART_BYTES + 7)
    stand.stored(bucket, "large", body)
    run = stand.back_up(bucket)
    assert run.state == "complete"
    assert stand.channels.read(TARGET, stand.contents("stored")[0].key) == body


def test_many_entries_make_a_manifest_in_parts(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"same")
    for number in range(150):
        stand.put(bucket, f"{number:04}-" + "k" * 200, b"same")
    run = stand.back_up(bucket)
    assert run.counts is not None
    assert run.counts["manifest_bytes"] > PART_BYTES
    assert len(stand.manifest(run)) == 153
    assert len(stand.items(run.id)) == 1


def test_the_snapshot_holds_what_is_overwritten_and_deleted_while_the_run_goes_on(
    stand: BackupStand,
) -> None:
    bucket = stand.backed_up()
    before = {key: stand.stored(bucket, key, key.encode()) for key in ("a", "b", "c", "d", "e")}
    run = stand.begin(bucket)
    assert stand.work(run.task_id) == "scheduled"
    assert len(stand.pins()) == 5
    stand.stored(bucket, "a", b"newer")
    stand.remove(bucket, "b")
    stand.stored(bucket, "f", b"newest")
    assert stand.work_all("delete") == []
    stand.carry_on()
    done = stand.run_row(run.id)
    assert done.state == "complete"
    lines = {line["key"]: line["version"] for line in stand.manifest(done)[1:-1]}
    assert lines == before
    # Without the pins, what was overwritten and deleted goes its way.
    assert stand.pins() == []
    assert stand.work_all("delete") == ["completed", "completed"]


def test_what_is_gone_before_it_could_be_pinned_is_counted(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "kept", b"kept")
    stand.stored(bucket, "gone", b"gone")
    run = stand.begin(bucket)
    stand.remove(bucket, "gone")
    assert stand.work_all("delete") == ["completed"]
    stand.carry_on()
    done = stand.run_row(run.id)
    assert done.state == "complete"
    assert done.counts is not None
    assert done.counts["missed"] == 1
    assert [line["key"] for line in stand.manifest(done)[1:-1]] == ["kept"]


def test_a_condemned_content_is_revived_by_its_pin(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    version = stand.stored(bucket, "k", b"k")
    run = stand.begin(bucket)
    stand.remove(bucket, "k")
    assert stand.work(run.task_id) == "scheduled"
    blob_id = stand.version(version).blob_id
    assert stand.blob(blob_id).state == "live"
    assert stand.work_all("delete") == ["completed"]
    assert stand.blob(blob_id).state == "live"
    stand.carry_on()
    assert [line["key"] for line in stand.manifest(stand.run_row(run.id))[1:-1]] == ["k"]


def test_a_target_that_is_away_holds_the_run_and_nothing_else(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"k")
    run = stand.begin(bucket)
    assert stand.work(run.task_id) == "scheduled"
    stand.channels.faulty[TARGET].fail_always(DOWN)
    (item,) = stand.items(run.id)
    assert stand.work(item.task_id) == "scheduled"
    assert stand.items(run.id)[0].state == "open"
    stand.channels.faulty[TARGET].heal()
    found = stand.channels.find(TARGET)
    assert found is not None
    found[0].breaker.succeeded()
    stand.carry_on()
    assert stand.run_row(run.id).state == "complete"


def test_only_one_run_is_open_and_a_slot_has_one_run(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    first = stand.begin(bucket, slot="2026-01-01T00:00:00Z")
    with pytest.raises(ConflictError) as refused:
        stand.begin(bucket)
    assert refused.value.code == "backup_open"
    stand.carry_on()
    assert stand.run_row(first.id).state == "complete"
    with pytest.raises(ConflictError) as refused:
        stand.begin(bucket, slot="2026-01-01T00:00:00Z")
    assert refused.value.code == "backup_slot_taken"
    with pytest.raises(ConflictError) as refused:
        stand.db.run_session(
            lambda session: open_run(session, stand.catalogue, stand.bucket("other"), slot="x")
        )
    assert refused.value.code == "backup_rule_missing"


def release(stand: BackupStand) -> None:
    for run_id in stand.look(runs_with_pins):
        page = partial(release_page, catalogue=stand.catalogue, run_id=run_id)
        while stand.db.run_session(page):
            pass


def test_cancelled_run_lets_its_pins_go_and_the_next_one_goes_on_from_it(
    stand: BackupStand,
) -> None:
    bucket = stand.backed_up()
    for number in range(4):
        stand.stored(bucket, str(number), b"%d" % number)
    run = stand.begin(bucket)
    stand.work(run.task_id)
    first, *rest = stand.items(run.id)
    assert stand.work(first.task_id) == "completed"
    stand.db.run_session(
        lambda session: cancel_run(session, stand.catalogue, session.get_one(BackupRun, run.id))
    )
    assert stand.state(run.task_id) == "cancelled"
    release(stand)
    assert stand.pins() == []
    assert stand.run_row(run.id).pins_until is None
    assert [stand.state(item.task_id) for item in rest] == ["cancelled"] * len(rest)
    assert stand.waiting("backup") == []
    again = stand.back_up(bucket)
    assert again.counts is not None
    assert (again.counts["reused"], again.counts["copied"]) == (1, 3)


def test_a_run_that_pins_for_a_day_has_failed(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"k")
    run = stand.begin(bucket)
    stand.work(run.task_id)
    stand.remove(bucket, "k")
    assert stand.work_all("delete") == []
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(BackupRun).values(pins_until=utc_now(-1)))
    assert stand.db.run_session(lambda session: fail_overdue(session, stand.catalogue, run.id))
    failed = stand.run_row(run.id)
    assert (failed.state, failed.error_code) == (BackupRunState.FAILED, "pins_expired")
    release(stand)
    assert stand.pins() == []
    assert stand.work_all("delete") == ["completed"]


def test_content_that_can_be_read_nowhere_leaves_the_rest_restorable(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    lost = stand.stored(bucket, "lost", b"lost")
    stand.stored(bucket, "kept", b"kept")
    (location,) = stand.locations(stand.version(lost).blob_id)
    stand.channels.faulty["a"].inner.delete(location.key, deadline=Deadline(10))
    run = stand.back_up(bucket)
    assert (run.state, run.counts["lost"] if run.counts else None) == ("complete", 1)
    lines = {line["key"]: line for line in stand.manifest(run)[1:-1]}
    assert "lacks" not in lines["kept"]
    assert (lines["lost"]["lacks"], lines["lost"]["target_key"]) == ("lost", "")
    tail = stand.manifest(run)[-1]
    assert (tail["entries"], tail["lacking"], tail["bytes"]) == (1, 1, 4)
    assert stand.pins() == []
    assert len(stand.waiting("restore")) == 1


def test_a_commit_that_was_under_way_at_the_snapshot_is_met_in_the_last_round(
    stand: BackupStand,
) -> None:
    """Its times lie before the snapshot, and it becomes visible after the first round."""
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"old")
    put = stand.put(bucket, "k", b"new")
    stand.backup = replace(stand.backup, settle_seconds=3600.0)
    run = stand.begin(bucket)
    assert stand.work(run.task_id) == "scheduled"
    assert stand.work(put.task_id) == "completed"
    with stand.db.engine.begin() as connection:
        moment = run.snapshot_at
        assert moment is not None
        before = moment - dt.timedelta(seconds=1)
        connection.execute(
            sa.update(Version).where(Version.id == put.version_id).values(stored_at=before)
        )
        connection.execute(
            sa.update(Version).where(Version.ended_at.is_not(None)).values(ended_at=before)
        )
    assert stand.work(run.task_id) == "scheduled"
    stand.backup = replace(stand.backup, settle_seconds=0.0)
    stand.carry_on()
    done = stand.run_row(run.id)
    assert done.state == "complete"
    assert {line["key"]: line["version"] for line in stand.manifest(done)[1:-1]} == {
        "k": put.version_id
    }
    assert (done.counts or {})["versions"] == 1


def test_a_version_that_was_being_written_at_the_snapshot_is_of_it(stand: BackupStand) -> None:
    """It has taken the place of another at once, and could not be seen when the run was opened."""
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"old")
    stand.stored(bucket, "other", b"new")
    stand.backup = replace(stand.backup, settle_seconds=3600.0)
    run = stand.begin(bucket)
    at_once = stand.stored(bucket, "k", b"new")
    with stand.db.engine.begin() as connection:
        moment = run.snapshot_at
        assert moment is not None
        before = moment - dt.timedelta(seconds=1)
        connection.execute(sa.update(Version).where(Version.id == at_once).values(stored_at=before))
        connection.execute(
            sa.update(Version).where(Version.ended_at.is_not(None)).values(ended_at=before)
        )
    assert stand.work(run.task_id) == "scheduled"
    stand.backup = replace(stand.backup, settle_seconds=0.0)
    stand.carry_on()
    lines = stand.manifest(stand.run_row(run.id))[1:-1]
    assert {line["key"]: line["version"] for line in lines}["k"] == at_once
    assert [line["key"] for line in lines] == ["other", "k"]


def test_no_manifest_names_what_the_target_has_lost_meanwhile(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"k")
    stand.back_up(bucket)
    stand.backup = replace(stand.backup, settle_seconds=3600.0)
    run = stand.begin(bucket)
    assert stand.work(run.task_id) == "scheduled"
    (content,) = stand.contents("stored")
    assert stand.db.run_session(lambda session: note_damage(session, content.id, detail="missing"))
    stand.backup = replace(stand.backup, settle_seconds=0.0)
    assert stand.work(run.task_id) == "failed"
    over = stand.run_row(run.id)
    assert (over.state, over.error_code) == ("failed", "backup_content_damaged")
    after = stand.back_up(bucket)
    assert (after.state, (after.counts or {})["copied"]) == ("complete", 1)
    for line in stand.manifest(after)[1:-1]:
        assert stand.channels.read(TARGET, line["target_key"]) == b"k"


def patient(stand: BackupStand, run_id: int, *, minutes: int = 7 * 60) -> None:
    """Let the items that are still open have waited for long."""
    for item in stand.items(run_id):
        if item.state == "open" and item.task_id is not None:
            born = stand.task(item.task_id)["created_at"]
            stand.bench.set(item.task_id, created_at=born - dt.timedelta(minutes=minutes))


def test_a_source_that_is_away_for_good_leaves_the_rest_and_later_runs(stand: BackupStand) -> None:
    bucket = stand.backed_up(channels=["a"])
    stand.stored(bucket, "away", b"away")
    stand.backed_up(channels=["b"])
    stand.stored(bucket, "kept", b"kept")
    stand.channels.faulty["a"].fail_always(DOWN)
    run = stand.begin(bucket)
    stand.work(run.task_id)
    away, kept = stand.items(run.id)
    assert stand.work(kept.task_id) == "completed"
    for _ in range(3):
        assert stand.work(away.task_id) == "scheduled"
    assert stand.items(run.id)[0].state == "open"
    patient(stand, run.id)
    stand.carry_on()
    done = stand.run_row(run.id)
    assert (done.state, (done.counts or {})["failed"]) == ("complete", 1)
    (failed,) = [item for item in stand.items(run.id) if item.state == "failed"]
    assert failed.error_code == "source_unavailable"
    lines = {line["key"]: line.get("lacks") for line in stand.manifest(done)[1:-1]}
    assert lines == {"away": "failed", "kept": None}
    assert stand.pins() == []
    # The next run does not wait as long for what was away before.
    again = stand.begin(bucket)
    stand.work(again.task_id)
    patient(stand, again.id, minutes=11)
    stand.carry_on()
    assert (stand.run_row(again.id).counts or {})["failed"] == 1
    # When it is back, the next run has it all.
    stand.channels.faulty["a"].heal()
    found = stand.channels.find("a")
    assert found is not None
    found[0].read_breaker.succeeded()
    after = stand.back_up(bucket)
    counts = after.counts or {}
    assert (counts["copied"], counts["reused"], counts["failed"]) == (1, 1, 0)


def test_a_run_that_could_copy_nothing_has_failed(stand: BackupStand) -> None:
    bucket = stand.backed_up(channels=["a"])
    stand.stored(bucket, "k", b"k")
    stand.channels.faulty["a"].fail_always(DOWN)
    run = stand.begin(bucket)
    stand.work(run.task_id)
    patient(stand, run.id)
    stand.carry_on()
    over = stand.run_row(run.id)
    assert (over.state, over.error_code) == ("failed", "items_failed")
    release(stand)
    assert stand.pins() == []


def test_a_content_whose_item_was_cancelled_is_not_left_out_silently(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    for key in ("kept", "out"):
        stand.stored(bucket, key, key.encode())
    run = stand.begin(bucket)
    stand.work(run.task_id)
    out = stand.items(run.id)[1]
    assert out.task_id is not None
    stand.db.run_session(
        lambda session: stand.catalogue.tasks.supersede(session, [out.task_id or 0])
    )
    stand.carry_on()
    done = stand.run_row(run.id)
    assert (done.state, (done.counts or {})["failed"]) == ("complete", 1)
    lines = {line["key"]: line.get("lacks") for line in stand.manifest(done)[1:-1]}
    assert lines == {"kept": None, "out": "cancelled"}


def test_another_targets_copy_is_read_where_the_content_is_lost(stand: BackupStand) -> None:
    bucket = stand.backed_up(channels=["a"])
    version = stand.stored(bucket, "k", b"k")
    stand.back_up(bucket)
    stand.lose(version)

    def other(session: Session) -> None:
        policy = BackupPolicy(target="b", grace_seconds=0.0)
        session.get_one(Bucket, bucket).backup = policy.model_dump(mode="json")

    stand.db.run_session(other)
    run = stand.back_up(bucket)
    assert (run.state, (run.counts or {})["copied"]) == ("complete", 1)
    (line,) = stand.manifest(run)[1:-1]
    assert stand.channels.read("b", line["target_key"]) == b"k"


def test_a_target_emptied_behind_our_back_is_seen_before_a_run_names_it(
    stand: BackupStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at a few of its contents leads to one at all of them."""
    monkeypatch.setattr("services.backup.auditing.MOST_SAMPLED", 1)
    bucket = stand.backed_up()
    contents = {str(number): b"%d" % number for number in range(5)}
    for key, body in contents.items():
        stand.stored(bucket, key, body)
    stand.back_up(bucket)
    stand.empty(TARGET)
    run = stand.back_up(bucket)
    counts = run.counts or {}
    assert (run.state, counts["copied"], counts["reused"]) == ("complete", 5, 0)
    for line in stand.manifest(run)[1:-1]:
        assert stand.channels.read(TARGET, line["target_key"]) == contents[line["key"]]
