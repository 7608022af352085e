"""Keys brought back from manifests, by policy; and a channel that was emptied filled again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from shared.catalog.backups.damage import note_damage
from shared.catalog.backups.retention import prune_run
from shared.catalog.models import BackupContent, Bucket, Restore
from shared.catalog.restores.runs import RestoreSpec, cancel_restore, open_restore
from shared.core.clock import Deadline
from shared.core.errors import ConflictError, NotFoundError
from shared.storage.errors import ChannelError
from tests.support.backups import TARGET, BackupStand, crash
from tests.support.handlers import PART_BYTES
from tests.support.outbox import Thread

pytestmark = pytest.mark.databases("mariadb")


def bytes_of(stand: BackupStand, bucket: int, key: str) -> bytes:
    """Return what a key holds now; what waits for its upload is stored first."""
    stand.work_all("upload")
    current = stand.object(bucket, key).current_version_id
    assert current is not None
    return stand.stored_bytes(current)


def test_a_deleted_key_comes_back_as_a_new_version_of_a_new_blob(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    body = os.urandom(2 * PART_BYTES)
    old = stand.stored(bucket, "k", body)
    stand.back_up(bucket)
    stand.remove(bucket, "k")
    assert stand.work_all("delete") == ["completed"]
    restore = stand.bring_back(bucket)
    assert (restore.state, restore.counts) == (
        "complete",
        {"entries": 1, "restored": 1, "restored_bytes": len(body)},
    )
    assert bytes_of(stand, bucket, "k") == body
    new = stand.version(stand.object(bucket, "k").current_version_id or 0)
    before = stand.version(old)
    assert new.blob_id != before.blob_id
    assert new.generation > before.generation
    assert (new.etag, new.content_type) == (before.etag, before.content_type)
    assert stand.outcomes(restore.id) == {"k": "restored"}


def test_content_that_is_stored_is_referred_to_at_once(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "a", b"same")
    stand.stored(bucket, "b", b"same")
    stand.back_up(bucket)
    stand.remove(bucket, "a")
    restore = stand.bring_back(bucket)
    assert stand.waiting("upload") == []
    assert stand.outcomes(restore.id) == {"a": "restored", "b": "same"}
    assert bytes_of(stand, bucket, "a") == b"same"
    assert len(stand.channels.keys("a")) == 1


@pytest.mark.parametrize(
    ("policy", "outcome", "content"),
    [("never", "kept", b"new"), ("if-newer", "older", b"new"), ("always", "restored", b"old")],
)
def test_the_policy_says_what_happens_to_keys_that_are_there(
    stand: BackupStand, policy: str, outcome: str, content: bytes
) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "changed", b"old")
    stand.stored(bucket, "gone", b"gone")
    stand.stored(bucket, "same", b"same")
    stand.back_up(bucket)
    stand.stored(bucket, "changed", b"new")
    stand.remove(bucket, "gone")
    restore = stand.bring_back(bucket, policy=policy)
    assert stand.outcomes(restore.id) == {"changed": outcome, "gone": "restored", "same": "same"}
    assert bytes_of(stand, bucket, "changed") == content
    again = stand.bring_back(bucket, policy=policy)
    assert "restored" not in stand.outcomes(again.id).values()


def test_if_newer_overwrites_what_is_older_than_the_backup(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"first")
    first = stand.back_up(bucket)
    stand.stored(bucket, "k", b"second")
    stand.back_up(bucket)
    stand.remove(bucket, "k")
    stand.bring_back(bucket, run=first.id)
    assert bytes_of(stand, bucket, "k") == b"first"
    # What was put back is the newest of all.
    restore = stand.bring_back(bucket, policy="if-newer")
    assert stand.outcomes(restore.id) == {"k": "older"}


def test_a_point_in_time_chooses_the_newest_backup_before_it(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"first")
    first = stand.back_up(bucket)
    stand.stored(bucket, "k", b"second")
    second = stand.back_up(bucket)
    stand.remove(bucket, "k")
    assert stand.bring_back(bucket, at=first.snapshot_at).run_id == first.id
    assert bytes_of(stand, bucket, "k") == b"first"
    assert stand.bring_back(bucket, at=second.ended_at, policy="always").run_id == second.id
    assert bytes_of(stand, bucket, "k") == b"second"
    with pytest.raises(NotFoundError) as refused:
        stand.bring_back(bucket, at=stand.version(1).created_at)
    assert refused.value.code == "backup_not_found"


def test_a_prefix_restores_only_its_keys(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    for key in ("a/1", "a/2", "b/1"):
        stand.stored(bucket, key, key.encode())
    stand.back_up(bucket)
    for key in ("a/1", "a/2", "b/1"):
        stand.remove(bucket, key)
    restore = stand.bring_back(bucket, prefix="a/")
    assert stand.outcomes(restore.id) == {"a/1": "restored", "a/2": "restored"}


def test_a_dry_run_counts_and_writes_nothing(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "gone", b"12345")
    stand.stored(bucket, "same", b"same")
    stand.stored(bucket, "lost", b"lost!!")
    stand.back_up(bucket)
    for key in ("gone", "lost"):
        stand.remove(bucket, key)
    assert stand.work_all("delete") == ["completed", "completed"]
    (lost,) = [one for one in stand.contents() if one.size_bytes == 6]
    stand.db.run_session(
        lambda session: setattr(session.get_one(BackupContent, lost.id), "state", "damaged")
    )
    restore = stand.bring_back(bucket, dry_run=True)
    assert restore.counts == {
        "entries": 3,
        "restored": 1,
        "restored_bytes": 5,
        "same": 1,
        "same_bytes": 4,
        "unrecoverable": 1,
        "unrecoverable_bytes": 6,
    }
    assert stand.object(bucket, "gone").served_version_id is None
    assert stand.waiting("upload") == []
    assert stand.outcomes(restore.id) == {}


def test_unrecoverable_content_is_listed_and_the_rest_restored(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    for key in ("1", "2", "3"):
        stand.stored(bucket, key, key.encode())
    stand.back_up(bucket)
    for key in ("1", "2", "3"):
        stand.remove(bucket, key)
    stand.work_all("delete")
    second = stand.contents("stored")[1]
    stand.channels.faulty[TARGET].inner.delete(second.key, deadline=Deadline(10))
    restore = stand.bring_back(bucket)
    assert restore.state == "complete"
    assert sorted(stand.outcomes(restore.id).values()) == ["restored", "restored", "unrecoverable"]
    assert [one.state for one in stand.contents()].count("damaged") == 1


def test_a_damaged_manifest_is_passed_over_for_the_older_one(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"k")
    first = stand.back_up(bucket)
    second = stand.back_up(bucket)
    manifest = stand.contents("stored", "manifest")[1]
    stand.channels.faulty[TARGET].inner.delete(manifest.key, deadline=Deadline(10))
    stand.remove(bucket, "k")
    restore = stand.bring_back(bucket)
    assert second.id > first.id == restore.run_id
    assert bytes_of(stand, bucket, "k") == b"k"
    stand.channels.faulty[TARGET].inner.delete(
        stand.contents("stored", "manifest")[0].key, deadline=Deadline(10)
    )
    hopeless = stand.bring_back(bucket, run=first.id)
    assert (hopeless.state, hopeless.error_code) == ("failed", "unrecoverable")


def test_a_key_written_while_it_is_decided_on_is_decided_on_anew(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"old")
    stand.back_up(bucket)
    stand.remove(bucket, "k")
    stand.work_all("delete")
    fetched = stand.channels.faulty[TARGET].hold("get")
    # The manifest's look is held first, then the content's.
    worker = Thread(lambda: stand.bring_back(bucket))
    assert fetched.reached.wait(10)
    fetched.release()
    put = stand.put(bucket, "k", b"user")
    worker.join_answer()
    assert stand.work(put.task_id) == "completed"
    assert bytes_of(stand, bucket, "k") == b"user"


def test_a_cancelled_restore_stops_and_keeps_what_it_has_restored(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    for number in range(5):
        stand.stored(bucket, str(number), b"%d" % number)
    stand.back_up(bucket)
    for number in range(5):
        stand.remove(bucket, str(number))

    def begin(session: Session) -> Restore:
        row = session.get_one(Bucket, bucket)
        return open_restore(session, stand.catalogue, row, RestoreSpec(), at=None)

    begun = stand.db.run_session(begin)
    stand.db.run_session(
        lambda session: cancel_restore(session, stand.catalogue, session.get_one(Restore, begun.id))
    )
    assert stand.state(begun.task_id) == "cancelled"
    assert stand.restore_row(begun.id).state == "cancelled"


def test_an_emptied_channel_is_filled_again_and_reads_are_as_before(stand: BackupStand) -> None:
    """The disaster: every key of the bucket's channel is gone; the search finds all of them."""
    bucket = stand.backed_up()
    contents = {f"{number}": os.urandom(10 + number * 30_000) for number in range(7)}
    versions = {key: stand.stored(bucket, key, body) for key, body in contents.items()}
    stand.stored(bucket, "again", contents["0"])
    stand.back_up(bucket)
    currents = {key: stand.object(bucket, key).current_version_id for key in contents}
    stand.empty("a")
    seen = stand.bring_back(bucket, mode="content", dry_run=True)
    assert (seen.counts or {})["lost"] == 8
    assert stand.losses() == []
    restore = stand.bring_back(bucket, mode="content")
    assert (restore.counts or {})["lost"] == 8
    assert len(stand.losses()) == 7
    assert set(stand.work_all("restore")) == {"completed"}
    for key, body in contents.items():
        assert stand.stored_bytes(versions[key]) == body
        assert stand.object(bucket, key).current_version_id == currents[key]
    assert {loss.state for loss in stand.losses()} == {"restored"}
    after = stand.bring_back(bucket, mode="content", deep=True)
    assert (after.counts or {})["present"] == 8
    assert "lost" not in (after.counts or {})


def open_one(stand: BackupStand, bucket: int, **spec: Any) -> Restore:
    """Open a restore, and leave its task waiting."""

    def begin(session: Session) -> Restore:
        row = session.get_one(Bucket, bucket)
        return open_restore(session, stand.catalogue, row, RestoreSpec(**spec), at=None)

    return stand.db.run_session(begin)


def revive(stand: BackupStand, task_id: int) -> None:
    """Bring the task of a dead process back, as the lease scan does, and work on it."""
    stand.bench.set(task_id, state="pending", owner=None, lease_until=None)
    assert stand.work(task_id) == "completed"


def test_a_manifest_damaged_half_way_is_left_for_the_older_one(
    stand: BackupStand, tmp_path: Path
) -> None:
    bucket = stand.backed_up()
    for key in ("1", "2", "3"):
        stand.stored(bucket, key, key.encode())
    first = stand.back_up(bucket)
    stand.back_up(bucket)
    for key in ("1", "2", "3"):
        stand.remove(bucket, key)
    begun = open_one(stand, bucket)
    assert begun.task_id is not None
    assert crash(stand, tmp_path, begun.task_id, "restore.after_key") == -9
    assert len(stand.outcomes(begun.id)) == 1
    manifest = stand.contents("stored", "manifest")[1]
    stand.channels.faulty[TARGET].inner.delete(manifest.key, deadline=Deadline(10))
    revive(stand, begun.task_id)
    done = stand.restore_row(begun.id)
    assert (done.state, done.run_id) == ("complete", first.id)
    assert stand.outcomes(begun.id) == {"1": "same", "2": "restored", "3": "restored"}
    assert (done.counts or {})["restored"] == 3


def test_a_backup_that_a_restore_reads_is_not_pruned(stand: BackupStand) -> None:
    bucket = stand.backed_up(keep_runs=1)
    stand.stored(bucket, "k", b"old")
    first = stand.back_up(bucket)
    begun = open_one(stand, bucket, policy="always")
    stand.stored(bucket, "k", b"new")
    stand.back_up(bucket)
    stand.work_all("delete")
    assert stand.run_row(first.id).state == "complete"
    with pytest.raises(ConflictError) as refused:
        stand.db.run_session(lambda session: prune_run(session, first.id))
    assert refused.value.code == "backup_in_use"
    assert stand.work(begun.task_id) == "completed"
    assert stand.outcomes(begun.id) == {"k": "restored"}
    assert bytes_of(stand, bucket, "k") == b"old"
    assert stand.prune_target(bucket) == ["completed"]
    assert stand.run_row(first.id).state == "pruned"


def test_a_search_that_dies_behind_its_last_page_counts_nothing_twice(
    stand: BackupStand, tmp_path: Path
) -> None:
    bucket = stand.backed_up()
    for key in ("1", "2"):
        stand.stored(bucket, key, key.encode())
    begun = open_one(stand, bucket, mode="content")
    assert begun.task_id is not None
    assert crash(stand, tmp_path, begun.task_id, "restore.after_page") == -9
    revive(stand, begun.task_id)
    done = stand.restore_row(begun.id)
    assert (done.state, (done.counts or {})["present"]) == ("complete", 2)


def mark_all(stand: BackupStand) -> None:
    """Take all that the target holds for damaged; the bytes are right."""
    for one in (*stand.contents("stored"), *stand.contents("stored", "manifest")):
        stand.db.run_session(
            lambda session, content=one.id: note_damage(  # type: ignore[misc]
                session, content, detail="a bad read-back"
            )
        )


def test_what_was_taken_for_damaged_is_asked_last_and_is_right_again(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"k")
    stand.back_up(bucket)
    stand.remove(bucket, "k")
    stand.work_all("delete")
    mark_all(stand)
    restore = stand.bring_back(bucket)
    assert stand.outcomes(restore.id) == {"k": "restored"}
    assert bytes_of(stand, bucket, "k") == b"k"
    assert len(stand.contents("stored")) == len(stand.contents("stored", "manifest")) == 1
    mark_all(stand)
    version = stand.object(bucket, "k").current_version_id
    assert version is not None
    stand.lose(version)
    assert stand.work(stand.report(version)) == "completed"
    assert stand.stored_bytes(version) == b"k"
    assert len(stand.contents("stored")) == 1


def test_one_bad_read_of_a_backup_is_read_again(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"k")
    stand.back_up(bucket)
    stand.remove(bucket, "k")
    stand.work_all("delete")
    short = ChannelError("cut off", code="short_read")
    stand.channels.faulty[TARGET].fail_next("get", short)
    restore = stand.bring_back(bucket)
    assert stand.outcomes(restore.id) == {"k": "restored"}
    assert len(stand.contents("stored")) == len(stand.contents("stored", "manifest")) == 1


def test_a_key_whose_bytes_the_backup_lacks_is_listed(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    lost = stand.stored(bucket, "lost", b"lost")
    stand.stored(bucket, "kept", b"kept")
    stand.lose(lost)
    run = stand.back_up(bucket)
    for key in ("kept", "lost"):
        stand.remove(bucket, key)
    stand.work_all("delete")
    dry = stand.bring_back(bucket, dry_run=True)
    assert dry.counts == {
        "entries": 2,
        "restored": 1,
        "restored_bytes": 4,
        "unrecoverable": 1,
        "unrecoverable_bytes": 4,
    }
    restore = stand.bring_back(bucket)
    assert stand.outcomes(restore.id) == {"kept": "restored", "lost": "unrecoverable"}
    # A later backup has the bytes: the same manifest brings the key back.
    stand.stored(bucket, "elsewhere", b"lost")
    stand.back_up(bucket)
    again = stand.bring_back(bucket, run=run.id)
    assert stand.outcomes(again.id) == {"kept": "same", "lost": "restored"}
    assert bytes_of(stand, bucket, "lost") == b"lost"


def test_a_dry_run_knows_what_the_tenant_has_stored(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    for key in ("a", "b"):
        stand.stored(bucket, key, b"same")
    stand.back_up(bucket)
    stand.remove(bucket, "a")
    mark_all(stand)
    dry = stand.bring_back(bucket, dry_run=True)
    assert (dry.counts or {})["restored"] == 1
