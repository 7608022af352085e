"""The delete protocol: ownership, races with revival, places that fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.blobs import add_reference
from shared.catalog.locking import lock_blobs
from shared.catalog.models import Blob, HolderKind, Location
from shared.core.clock import Deadline
from shared.core.errors import ShuttingDown
from shared.storage.errors import ChannelFull, ChannelUnavailable
from tests.support.handlers import Stand
from tests.support.outbox import Thread

DOWN = ChannelUnavailable("down")
CONTENT = b"hello world"


@pytest.fixture
def bucket(stand: Stand) -> int:
    return stand.bucket()


@pytest.fixture
def patient(blox_url: str, tmp_path: Path) -> Iterator[Stand]:
    """A worker of a deployment with an hour of grace."""
    made = Stand(blox_url, tmp_path, grace_seconds=3600.0)
    yield made
    made.close()


def stored(stand: Stand, bucket: int, key: str = "a.txt") -> int:
    """Store an object; returns its blob's id."""
    put = stand.put(bucket, key, CONTENT)
    if not put.instant:
        assert stand.work(put.task_id) == "completed"
    return stand.version(put.version_id).blob_id


def only_delete(stand: Stand) -> int:
    (task_id,) = stand.waiting("delete")
    return task_id


def test_last_reference_gone_deletes_the_bytes(stand: Stand, bucket: int) -> None:
    blob_id = stored(stand, bucket)
    stand.remove(bucket, "a.txt")
    assert stand.blob(blob_id).state == "condemned"
    task_id = only_delete(stand)
    assert stand.work(task_id) == "completed"
    blob = stand.blob(blob_id)
    assert (blob.state, blob.delete_owner) == ("deleted", task_id)
    assert blob.deleted_at is not None
    assert [one.state for one in stand.locations(blob_id)] == ["tombstone"]
    assert stand.channels.keys("a") == []


def test_another_reference_keeps_it(stand: Stand, bucket: int) -> None:
    blob_id = stored(stand, bucket)
    stored(stand, bucket, "b.txt")
    stand.remove(bucket, "a.txt")
    assert stand.waiting("delete") == []
    assert stand.blob(blob_id).state == "live"


def test_revived_before_the_task_runs_is_left_alone(stand: Stand, bucket: int) -> None:
    blob_id = stored(stand, bucket)
    stand.remove(bucket, "a.txt")
    task_id = only_delete(stand)
    assert stored(stand, bucket, "again.txt") == blob_id
    assert stand.work(task_id) == "completed"
    assert stand.blob(blob_id).state == "live"
    assert len(stand.channels.keys("a")) == 1


def test_condemned_anew_is_for_the_new_task(stand: Stand, bucket: int) -> None:
    blob_id = stored(stand, bucket)
    stand.remove(bucket, "a.txt")
    first = only_delete(stand)
    stored(stand, bucket, "again.txt")
    stand.remove(bucket, "again.txt")
    second = [task_id for task_id in stand.waiting("delete") if task_id != first]
    assert stand.work(first) == "completed"
    assert stand.blob(blob_id).state == "condemned"
    assert stand.work(second[0]) == "completed"
    assert stand.blob(blob_id).state == "deleted"


def test_grace_is_waited_for_without_counting(patient: Stand) -> None:
    bucket = patient.bucket()
    blob_id = stored(patient, bucket)
    patient.remove(bucket, "a.txt")
    task_id = only_delete(patient)
    assert patient.work(task_id) == "scheduled"
    task = patient.task(task_id)
    assert (task["attempt"], task["error_code"]) == (0, "snoozed")
    assert patient.blob(blob_id).state == "condemned"
    assert len(patient.channels.keys("a")) == 1


def test_reference_found_by_the_recount_brings_it_back(stand: Stand, bucket: int) -> None:
    """A reference that left the state behind: the recount under the lock decides."""
    blob_id = stored(stand, bucket)
    stand.remove(bucket, "a.txt")

    def attach(session: Session) -> None:
        add_reference(session, lock_blobs(session, [blob_id])[blob_id], HolderKind.HOLD, 7)

    stand.db.run_session(attach)
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Blob).values(state="condemned"))
    assert stand.work(only_delete(stand)) == "completed"
    assert stand.blob(blob_id).state == "live"
    assert len(stand.channels.keys("a")) == 1


def test_upload_of_the_same_content_while_deleting_gets_a_blob_of_its_own(
    stand: Stand, other: Stand, bucket: int
) -> None:
    blob_id = stored(stand, bucket)
    stand.remove(bucket, "a.txt")
    gate = stand.channels.faulty["a"].hold("delete")
    execution = stand.claim(only_delete(stand))
    worker = Thread(lambda: stand.run(execution))
    assert gate.reached.wait(10)
    put = other.put(bucket, "b.txt", CONTENT)
    assert not put.instant
    assert other.work(put.task_id) == "completed"
    gate.release()
    assert worker.join_answer() == "completed"
    assert stand.blob(blob_id).state == "deleted"
    fresh = stand.version(put.version_id)
    assert fresh.blob_id != blob_id
    assert stand.stored_bytes(put.version_id) == CONTENT


def test_worker_lost_after_ownership_is_gone_on_from(
    stand: Stand, other: Stand, bucket: int
) -> None:
    blob_id = stored(stand, bucket)
    stand.remove(bucket, "a.txt")
    task_id = only_delete(stand)
    gate = stand.channels.faulty["a"].hold("delete")
    execution = stand.claim(task_id)
    worker = Thread(lambda: stand.run(execution))
    assert gate.reached.wait(10)
    stand.bench.set(task_id, state="pending", owner=None, lease_until=None)
    assert other.work(task_id) == "completed"
    assert other.blob(blob_id).state == "deleted"
    gate.release()
    assert worker.join_answer() == "completed"
    assert other.blob(blob_id).state == "deleted"


def test_shutdown_in_the_middle_gives_the_task_back(
    stand: Stand, other: Stand, bucket: int
) -> None:
    blob_id = stored(stand, bucket)
    stand.remove(bucket, "a.txt")
    gate = stand.channels.faulty["a"].hold("delete")
    execution = stand.claim(only_delete(stand))
    worker = Thread(lambda: stand.run(execution))
    assert gate.reached.wait(10)
    execution.stop(ShuttingDown(""))
    gate.release()
    assert worker.join_answer() == "pending"
    assert other.work(execution.task.id) == "completed"
    assert other.blob(blob_id).state == "deleted"


def test_channel_that_fails_parks_the_location_and_waits(stand: Stand, bucket: int) -> None:
    blob_id = stored(stand, bucket)
    stand.remove(bucket, "a.txt")
    task_id = only_delete(stand)
    stand.channels.faulty["a"].fail_always(DOWN, "delete")
    assert stand.work(task_id) == "scheduled"
    (location,) = stand.locations(blob_id)
    assert (location.state, location.tries) == ("delete_failed", 1)
    assert location.next_try_at is not None
    assert "down" in (location.error_detail or "")
    assert stand.blob(blob_id).state == "deleting"
    assert stand.task(task_id)["attempt"] == 0

    # Not due yet: the channel is not asked again.
    asked = stand.channels.faulty["a"].calls["delete"]
    assert stand.work(task_id) == "scheduled"
    assert stand.channels.faulty["a"].calls["delete"] == asked

    stand.channels.faulty["a"].heal()
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Location).values(next_try_at=location.created_at))
    assert stand.work(task_id) == "completed"
    assert stand.blob(blob_id).state == "deleted"
    assert stand.channels.keys("a") == []


def test_a_parked_location_does_not_stop_the_others(stand: Stand, bucket: int) -> None:
    """An upload that failed over left an intent on the first channel; that channel is away."""
    stand.channels.faulty["a"].fail_always(DOWN)
    blob_id = stored(stand, bucket)
    stand.remove(bucket, "a.txt")
    assert stand.work(only_delete(stand)) == "scheduled"
    states = {one.channel: one.state for one in stand.locations(blob_id)}
    assert states == {"a": "delete_failed", "b": "tombstone"}
    assert stand.channels.keys("b") == []


def test_channel_that_is_gone_from_the_catalogue_parks_too(stand: Stand, bucket: int) -> None:
    blob_id = stored(stand, bucket)
    stand.remove(bucket, "a.txt")
    stand.channels.gone.add("a")
    assert stand.work(only_delete(stand)) == "scheduled"
    assert stand.locations(blob_id)[0].state == "delete_failed"


def test_disabled_channel_is_still_deleted_from(stand: Stand, bucket: int) -> None:
    blob_id = stored(stand, bucket)
    stand.remove(bucket, "a.txt")
    stand.channels.disabled.add("a")
    assert stand.work(only_delete(stand)) == "completed"
    assert stand.blob(blob_id).state == "deleted"


def test_open_breaker_parks_without_counting_a_failure(stand: Stand, bucket: int) -> None:
    blob_id = stored(stand, bucket)
    stand.remove(bucket, "a.txt")
    found = stand.channels.find("a")
    assert found is not None
    for _ in range(3):
        found[0].read_breaker.failed()
    assert stand.work(only_delete(stand)) == "scheduled"
    (location,) = stand.locations(blob_id)
    assert (location.state, location.tries) == ("delete_failed", 0)


def test_channel_that_is_full_lets_go_of_what_it_holds(stand: Stand, bucket: int) -> None:
    blob_id = stored(stand, bucket)
    stand.channels.faulty["a"].fail_always(ChannelFull("full"), "put")
    for number in range(3):
        stand.work(stand.put(bucket, f"{number}.txt", b"more %d" % number).task_id)
    found = stand.channels.find("a")
    assert found is not None
    assert not found[0].breaker.ready()
    with found[0].channel.get(stand.locations(blob_id)[0].key, deadline=Deadline(5)) as chunks:
        assert b"".join(chunks)
    stand.remove(bucket, "a.txt")
    assert stand.work(only_delete(stand)) == "completed"
    assert stand.blob(blob_id).state == "deleted"


def test_bytes_gone_already_are_fine(stand: Stand, bucket: int) -> None:
    blob_id = stored(stand, bucket)
    (location,) = stand.locations(blob_id)
    stand.channels.faulty["a"].inner.delete(location.key, deadline=Deadline(5))
    stand.remove(bucket, "a.txt")
    assert stand.work(only_delete(stand)) == "completed"
    assert stand.blob(blob_id).state == "deleted"


def test_deleting_twice_is_fine(stand: Stand, bucket: int) -> None:
    stored(stand, bucket)
    stand.remove(bucket, "a.txt")
    task_id = only_delete(stand)
    stand.work(task_id)
    stand.bench.set(task_id, state="pending")
    assert stand.work(task_id) == "completed"
