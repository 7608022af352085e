"""The upload protocol: every way through it, and every way to be cut short."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy as sa

from shared.catalog.models import BlobRef, ChannelRecord, Location
from shared.core.clock import Deadline
from shared.core.errors import ShuttingDown
from shared.outbox import Execution
from shared.outbox.manual import retry
from shared.storage.errors import ChannelRefused, ChannelUnavailable
from shared.storage.faulty import Gate
from tests.support.handlers import MIB, PART_BYTES, Stand
from tests.support.outbox import Thread

DOWN = ChannelUnavailable("down")
SMALL = b"hello world"
LARGE_PARTS = 5
LARGE = os.urandom(PART_BYTES * LARGE_PARTS - 100)


def refs(stand: Stand, blob_id: int) -> int:
    return stand.look(
        lambda session: (
            session.scalar(
                sa.select(sa.func.count()).select_from(BlobRef).where(BlobRef.blob_id == blob_id)
            )
            or 0
        )
    )


def hold_in_part(stand: Stand, task_id: int | None, number: int) -> tuple[Execution, Thread, Gate]:
    """Begin an upload in a thread and hold it in a part that it has not sent yet."""
    faulty = stand.channels.faulty["a"]
    execution = stand.claim(task_id)
    gate = faulty.hold("put_part")
    worker = Thread(lambda: stand.run(execution))
    for _ in range(number - 1):
        assert gate.reached.wait(10)
        following = faulty.hold("put_part")
        gate.release()
        gate = following
    assert gate.reached.wait(10)
    return execution, worker, gate


def test_small_file_is_stored_and_staging_is_empty(stand: Stand) -> None:
    bucket = stand.bucket()
    put = stand.put(bucket, "a.txt", SMALL)
    staging_key = stand.version(put.version_id).staging_key
    assert staging_key is not None

    assert stand.work(put.task_id) == "completed"

    assert stand.stored_bytes(put.version_id) == SMALL
    version = stand.version(put.version_id)
    blob = stand.blob(version.blob_id)
    assert (version.staging_key, blob.state, refs(stand, blob.id)) == (None, "live", 1)
    assert stand.object(bucket, "a.txt").current_version_id == put.version_id
    assert not stand.is_staged(staging_key)
    assert stand.task(put.task_id)["result"]["channel"] == "a"


def test_empty_file_is_stored(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "empty", b"")
    assert stand.work(put.task_id) == "completed"
    assert stand.stored_bytes(put.version_id) == b""


def test_large_file_goes_in_parts_with_checkpoints(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "large", LARGE)
    assert stand.work(put.task_id) == "completed"
    assert stand.stored_bytes(put.version_id) == LARGE
    assert stand.channels.faulty["a"].calls["put_part"] == LARGE_PARTS
    assert stand.event_types(put.task_id).count("part") == LARGE_PARTS


def test_first_channel_down_fails_over_in_the_same_execution(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    stand.channels.faulty["a"].fail_always(DOWN)
    assert stand.work(put.task_id) == "completed"
    assert stand.stored_bytes(put.version_id) == SMALL
    states = [(one.channel, one.state) for one in stand.locations()]
    assert states == [("a", "intent"), ("b", "stored")]
    assert "channel_failed" in stand.event_types(put.task_id)
    assert stand.task(put.task_id)["checkpoint"]["tries"] == {"a": 1, "b": 1}


def test_channel_that_refuses_for_good_is_one_channel_only(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    stand.channels.faulty["a"].fail_always(ChannelRefused("forbidden"))
    assert stand.work(put.task_id) == "completed"
    assert stand.channels.keys("b")


def test_failing_in_the_middle_aborts_there_and_goes_on_elsewhere(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "large", LARGE)
    faulty = stand.channels.faulty["a"]
    faulty.fail_next("complete_upload", DOWN)
    assert stand.work(put.task_id) == "completed"
    assert stand.stored_bytes(put.version_id) == LARGE
    assert faulty.calls["abort_upload"] == 1
    assert stand.channels.keys("a") == []


def test_all_channels_down_retries_until_each_has_its_tries(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    refused = ChannelRefused("full of hate")
    for name in ("a", "b"):
        stand.channels.faulty[name].fail_always(refused, "put")
    states = [stand.work(put.task_id) for _ in range(3)]

    assert states == ["scheduled", "scheduled", "failed"]
    assert [stand.channels.faulty[name].calls["put"] for name in ("a", "b")] == [3, 3]
    version = stand.version(put.version_id)
    assert (version.state, version.error_code) == ("failed", "channels_spent")
    assert version.staging_key is not None
    assert stand.is_staged(version.staging_key)


def test_failed_upload_can_be_retried_by_hand(stand: Stand) -> None:
    put = stand.put(stand.bucket(channels=["a"]), "a.txt", SMALL)
    assert put.task_id is not None
    stand.channels.faulty["a"].fail_always(ChannelRefused("no"), "put")
    for _ in range(3):
        stand.work(put.task_id)
    found = stand.channels.find("a")
    assert found is not None
    found[0].breaker.succeeded()
    assert stand.version(put.version_id).state == "failed"

    stand.channels.faulty["a"].heal()
    retry(stand.bench.context, put.task_id, by="operator", reason="mended")
    assert stand.version(put.version_id).state == "pending"
    assert stand.work(put.task_id) == "completed"
    assert stand.stored_bytes(put.version_id) == SMALL


def test_open_breakers_wait_without_counting(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    for name in ("a", "b"):
        found = stand.channels.find(name)
        assert found is not None
        for _ in range(3):
            found[0].breaker.failed()
    assert stand.work(put.task_id) == "blocked"
    task = stand.task(put.task_id)
    assert (task["attempt"], task["error_code"]) == (0, "parked")
    assert task["resource_key"] == "channel:a"
    assert stand.locations() == []
    for name in ("a", "b"):
        assert stand.channels.faulty[name].calls == {}


def test_disabled_channel_is_passed_over(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    stand.channels.disabled.add("a")
    assert stand.work(put.task_id) == "completed"
    assert stand.channels.keys("a") == []


def test_channel_removed_a_moment_ago_gets_no_bytes(stand: Stand) -> None:
    """A worker's book of channels may be behind: nobody would find what it stored there."""
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    with stand.db.engine.begin() as connection:
        connection.execute(sa.delete(ChannelRecord).where(ChannelRecord.name == "a"))
    assert stand.work(put.task_id) == "completed"
    assert [location.channel for location in stand.locations()] == ["b"]
    assert stand.channels.keys("a") == []


def test_no_channel_enabled_waits_for_an_operator(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    stand.channels.disabled.update({"a", "b"})
    assert stand.work(put.task_id) == "scheduled"
    assert stand.task(put.task_id)["attempt"] == 0
    stand.channels.disabled.clear()
    assert stand.work(put.task_id) == "completed"


def test_shutdown_in_the_middle_goes_on_elsewhere_without_sending_parts_again(
    stand: Stand, other: Stand
) -> None:
    put = stand.put(stand.bucket(), "large", LARGE)
    execution, worker, gate = hold_in_part(stand, put.task_id, 3)
    execution.stop(ShuttingDown("the pod goes away"))
    gate.release()
    assert worker.join_answer() == "pending"
    assert stand.task(put.task_id)["checkpoint"]["current"]["progress"]["parts_done"] == 2
    assert stand.task(put.task_id)["attempt"] == 0

    assert other.work(put.task_id) == "completed"
    assert other.stored_bytes(put.version_id) == LARGE
    # The third part had arrived, although no checkpoint says so.
    assert other.channels.faulty["a"].calls["put_part"] == LARGE_PARTS - 3
    assert other.task(put.task_id)["checkpoint"]["tries"] == {"a": 1}
    assert "resumed" in other.event_types(put.task_id)
    assert len(other.locations()) == 1


def test_killed_worker_is_gone_on_from_and_what_it_does_late_does_no_harm(
    stand: Stand, other: Stand
) -> None:
    """The first worker hangs in its third part, loses its lease, and wakes up when all is done."""
    put = stand.put(stand.bucket(), "large", LARGE)
    assert put.task_id is not None
    _, worker, gate = hold_in_part(stand, put.task_id, 3)
    stand.bench.set(put.task_id, state="pending", owner=None, lease_until=None)

    assert other.work(put.task_id) == "completed"
    sent = other.channels.faulty["a"].calls["put_part"]
    assert sent == LARGE_PARTS - 2
    gate.release()
    assert worker.join_answer() == "completed"
    assert other.stored_bytes(put.version_id) == LARGE
    version = other.version(put.version_id)
    assert [one.state for one in other.locations(version.blob_id)] == ["stored"]
    assert refs(other, version.blob_id) == 1


def test_intent_taken_by_a_sweep_is_not_used_again(stand: Stand, other: Stand) -> None:
    put = stand.put(stand.bucket(), "large", LARGE)
    execution, worker, gate = hold_in_part(stand, put.task_id, 2)
    execution.stop(ShuttingDown(""))
    gate.release()
    worker.join_answer()
    (taken,) = stand.locations()
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Location).values(state="condemned"))

    assert other.work(put.task_id) == "completed"
    fresh = [one for one in other.locations() if one.id != taken.id]
    assert [one.state for one in fresh] == ["stored"]
    assert fresh[0].key != taken.key


def test_intent_taken_before_the_commit_writes_the_bytes_again(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    gate = stand.channels.faulty["a"].hold("head")
    execution = stand.claim(put.task_id)
    worker = Thread(lambda: stand.run(execution))
    assert gate.reached.wait(10)
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Location).values(state="condemned"))
    gate.release()
    assert worker.join_answer() == "scheduled"
    assert stand.version(put.version_id).state == "pending"
    assert stand.work(put.task_id) == "completed"
    assert [one.state for one in stand.locations()] == ["condemned", "stored"]


def test_overwritten_while_waiting_ends_superseded(stand: Stand) -> None:
    bucket = stand.bucket()
    old = stand.put(bucket, "a.txt", SMALL)
    new = stand.put(bucket, "a.txt", b"newer")
    assert stand.state(old.task_id) == "cancelled"
    assert stand.version(old.version_id).state == "superseded"
    assert stand.work(new.task_id) == "completed"
    assert stand.object(bucket, "a.txt").current_version_id == new.version_id


def test_overwritten_while_uploading_never_commits(stand: Stand) -> None:
    bucket = stand.bucket()
    old = stand.put(bucket, "a.txt", SMALL)
    execution = stand.claim(old.task_id)
    gate = stand.channels.faulty["a"].hold("put")
    worker = Thread(lambda: stand.run(execution))
    assert gate.reached.wait(10)
    new = stand.put(bucket, "a.txt", b"newer")
    gate.release()
    assert worker.join_answer() == "cancelled"
    assert stand.task(old.task_id)["error_code"] == "superseded"
    assert stand.version(old.version_id).state == "superseded"
    assert stand.work(new.task_id) == "completed"
    assert stand.stored_bytes(new.version_id) == b"newer"
    assert stand.version(old.version_id).state == "superseded"


def test_deleted_while_uploading_stays_deleted(stand: Stand) -> None:
    bucket = stand.bucket()
    put = stand.put(bucket, "a.txt", SMALL)
    execution = stand.claim(put.task_id)
    gate = stand.channels.faulty["a"].hold("put")
    worker = Thread(lambda: stand.run(execution))
    assert gate.reached.wait(10)
    stand.remove(bucket, "a.txt")
    gate.release()
    assert worker.join_answer() == "cancelled"
    assert stand.version(put.version_id).state == "deleted"
    assert stand.object(bucket, "a.txt").served_version_id is None


def test_replaced_version_loses_its_reference_and_its_bytes(stand: Stand) -> None:
    bucket = stand.bucket()
    old = stand.put(bucket, "a.txt", SMALL)
    stand.work(old.task_id)
    old_blob = stand.version(old.version_id).blob_id
    new = stand.put(bucket, "a.txt", b"newer")
    stand.work(new.task_id)
    assert stand.version(old.version_id).state == "replaced"
    assert stand.blob(old_blob).state == "condemned"
    assert stand.work_all("delete") == ["completed"]
    assert stand.blob(old_blob).state == "deleted"
    assert len(stand.channels.keys("a")) == 1
    assert stand.stored_bytes(new.version_id) == b"newer"


def test_same_content_at_the_same_time_is_kept_once(stand: Stand, other: Stand) -> None:
    bucket = stand.bucket()
    first = stand.put(bucket, "one.txt", SMALL)
    second = stand.put(bucket, "two.txt", SMALL)
    executions = [stand.claim(first.task_id), other.claim(second.task_id)]
    gates = [stand.channels.faulty["a"].hold("head"), other.channels.faulty["a"].hold("head")]
    workers = [
        Thread(lambda: stand.run(executions[0])),
        Thread(lambda: other.run(executions[1])),
    ]
    for gate in gates:
        assert gate.reached.wait(10)
    for gate in gates:
        gate.release()
    assert [worker.join_answer() for worker in workers] == ["completed", "completed"]

    blobs = {stand.version(one.version_id).blob_id for one in (first, second)}
    assert len(blobs) == 1
    (blob_id,) = blobs
    assert refs(stand, blob_id) == 2
    assert stand.work_all("delete") == ["completed"]
    assert len(stand.channels.keys("a")) == 1
    for one in (first, second):
        assert stand.stored_bytes(one.version_id) == SMALL


def test_same_content_again_is_instant(stand: Stand) -> None:
    bucket = stand.bucket()
    first = stand.put(bucket, "one.txt", SMALL)
    stand.work(first.task_id)
    again = stand.put(bucket, "two.txt", SMALL)
    assert again.instant
    assert stand.waiting("upload") == []
    assert len(stand.channels.keys("a")) == 1


def test_overwriting_with_the_same_content_keeps_the_blob_live(stand: Stand) -> None:
    bucket = stand.bucket()
    old = stand.put(bucket, "a.txt", SMALL)
    new = stand.put(bucket, "a.txt", SMALL)
    assert stand.state(old.task_id) == "cancelled"
    stand.work(new.task_id)
    blob = stand.blob(stand.version(new.version_id).blob_id)
    assert (blob.state, refs(stand, blob.id)) == ("live", 1)


def test_damaged_staging_fails_at_once_whatever_the_channel(stand: Stand, tmp_path: Path) -> None:
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    key = stand.version(put.version_id).staging_key
    assert key is not None
    (file,) = (tmp_path / "staging" / "objects").rglob(key.rpartition("/")[2])
    file.write_bytes(b"HELLO world")
    assert stand.work(put.task_id) == "failed"
    assert stand.version(put.version_id).state == "failed"
    assert stand.channels.faulty["b"].calls["put"] == 0
    assert stand.channels.keys("a") == []


def test_missing_staging_file_is_a_failure(stand: Stand, tmp_path: Path) -> None:
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    key = stand.version(put.version_id).staging_key
    assert key is not None
    stand.staging.channel.delete(key, deadline=Deadline(5))
    assert stand.work(put.task_id) == "failed"
    assert stand.task(put.task_id)["error_code"] == "source_missing"


def test_staging_that_cannot_be_read_is_not_the_channels_fault(
    stand: Stand, tmp_path: Path
) -> None:
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    (tmp_path / "staging").rename(tmp_path / "away")
    assert stand.work(put.task_id) == "scheduled"
    assert stand.task(put.task_id)["checkpoint"]["tries"] == {"a": 1}
    (tmp_path / "away").rename(tmp_path / "staging")
    assert stand.work(put.task_id) == "completed"
    assert stand.task(put.task_id)["checkpoint"]["tries"] == {"a": 1}


def test_staging_file_in_the_trash_is_still_found(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    key = stand.version(put.version_id).staging_key
    assert key is not None
    assert stand.staging.trash(key)
    assert stand.work(put.task_id) == "completed"
    assert not stand.is_staged(key)


def test_stored_already_is_fine(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    assert put.task_id is not None
    stand.work(put.task_id)
    stand.bench.set(put.task_id, state="pending")
    assert stand.work(put.task_id) == "completed"
    assert len(stand.locations()) == 1


@pytest.mark.parametrize("size", [PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, MIB])
def test_sizes_around_a_part(stand: Stand, size: int) -> None:
    content = os.urandom(size)
    put = stand.put(stand.bucket(), "a", content)
    assert stand.work(put.task_id) == "completed"
    assert stand.stored_bytes(put.version_id) == content
