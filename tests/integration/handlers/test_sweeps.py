"""Sweeps: what is left behind goes, what is named or alive never does."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from shared.catalog.models import (
    Blob,
    Location,
    Review,
    Version,
)
from shared.catalog.sweeps.locations import Intent, Writer, is_over
from shared.core.clock import Deadline
from shared.core.errors import ShuttingDown
from shared.outbox.settling import SettleTask, kind_of
from shared.storage.body import Body
from tests.integration.handlers.sweeping import DOWN, passes, states, sweeper
from tests.support.handlers import PART_BYTES, Stand
from tests.support.outbox import Thread

CONTENT = b"hello world"
LARGE = os.urandom(PART_BYTES * 3)


def cut_short(stand: Stand, task_id: int | None, call: str) -> Callable[[], None]:
    """Begin an upload and stop it in a call of the channel, which goes on when asked to."""
    gate = stand.channels.faulty["a"].hold(call)
    execution = stand.claim(task_id)
    worker = Thread(lambda: stand.run(execution))
    assert gate.reached.wait(10)
    execution.stop(ShuttingDown(""))

    def let_go() -> None:
        gate.release()
        worker.join_answer()

    return let_go


# Staging


def test_unnamed_file_goes_to_the_trash_and_then_for_good(stand: Stand) -> None:
    key = stand.stage(CONTENT).key
    sweeps = sweeper(stand, trash_seconds=3600.0)
    passes(sweeps)
    assert in_staging(stand) == [key]
    passes(sweeps)
    assert in_staging(stand) == []
    # In the trash readers still find it.
    assert stand.is_staged(key)
    passes(sweeper(stand))
    assert not stand.is_staged(key)


def in_staging(stand: Stand) -> list[str]:
    return [entry.key for entry in stand.staging.old(minimum_age_seconds=0.0, deadline=Deadline(5))]


def test_young_file_is_left_alone(stand: Stand) -> None:
    key = stand.stage(CONTENT).key
    passes(sweeper(stand, staging_age_seconds=3600.0), 3)
    assert in_staging(stand) == [key]


@pytest.mark.parametrize("state", ["pending", "failed", "reviewing"])
def test_named_file_is_never_touched(stand: Stand, state: str) -> None:
    put = stand.put(stand.bucket(), "a.txt", CONTENT)
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Version).values(state=state))
    passes(sweeper(stand), 3)
    key = stand.version(put.version_id).staging_key
    assert in_staging(stand) == [key]


def test_file_named_after_it_was_trashed_comes_back(stand: Stand) -> None:
    """A request that was held up for longer than the age of the sweep."""
    staged = stand.stage(CONTENT)
    assert stand.staging.trash(staged.key)
    bucket = stand.bucket()
    put = stand.put(bucket, "a.txt", b"other")
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Version).values(staging_key=staged.key))
    report = passes(sweeper(stand))
    assert report.counts["staging"]["restored"] == 1
    assert staged.key in in_staging(stand)
    assert stand.version(put.version_id).staging_key == staged.key


def test_quarantine_ends(stand: Stand) -> None:
    put = stand.put(stand.bucket(max_bytes=1), "a.txt", CONTENT)
    stand.work(put.task_id)
    sweeps = sweeper(stand)
    passes(sweeps, 3)
    key = stand.version(put.version_id).staging_key
    assert key is not None
    assert stand.is_staged(key)
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Version).values(staging_until=Version.created_at))
    passes(sweeps, 3)
    assert not stand.is_staged(key)
    version = stand.version(put.version_id)
    assert (version.staging_key, version.state) == (None, "blocked")


def test_error_while_listing_staging_touches_nothing(stand: Stand, tmp_path: Path) -> None:
    key = stand.stage(CONTENT).key
    sweeps = sweeper(stand)
    passes(sweeps)
    (tmp_path / "staging" / ".channel").unlink()
    report = sweeps.run_once(deadline=Deadline(60), check=lambda: None)
    # Also what is being joined there is listed, by the sweep of bodies.
    assert sorted(report.errors) == ["bodies", "staging"]
    (tmp_path / "staging" / ".channel").touch()
    assert in_staging(stand) == [key]


def test_cap_bounds_a_pass(stand: Stand) -> None:
    for _ in range(5):
        stand.stage(CONTENT)
    sweeps = sweeper(stand, max_deletions=2, trash_seconds=3600.0)
    passes(sweeps, 2)
    assert len(in_staging(stand)) == 3
    passes(sweeps)
    assert len(in_staging(stand)) == 1


def test_dry_run_changes_nothing(stand: Stand) -> None:
    stand.stage(CONTENT)
    bucket = stand.bucket()
    put = stand.put(bucket, "a.txt", CONTENT)
    stand.channels.faulty["a"].fail_always(DOWN)
    stand.work(put.task_id)
    stand.channels.faulty["a"].heal()
    before = (in_staging(stand), states(stand))
    report = passes(sweeper(stand, dry_run=True), 3)
    assert (in_staging(stand), states(stand)) == before
    assert report.counts["staging"]["trashed"] == 1
    assert report.counts["locations"]["intents_over"] == 1


# Locations


@pytest.mark.parametrize(
    ("writer", "fence", "over"),
    [
        (None, 1, True),
        (Writer("completed", 1, None), 1, True),
        (Writer("failed", 1, {"current": {"key": "acme/ab/k1"}}), 1, True),
        (Writer("cancelled", 1, None), 1, True),
        (Writer("running", 1, None), 1, False),
        (Writer("pending", 1, None), 1, False),
        (Writer("running", 2, None), 1, True),
        (Writer("running", 2, {"current": {"key": "acme/ab/k1"}}), 1, False),
        (Writer("running", 2, {"current": {"key": "acme/ab/k2"}}), 1, True),
        (Writer("scheduled", 3, {"tries": {}}), 1, True),
    ],
)
def test_when_an_execution_is_over(writer: Writer | None, fence: int, over: bool) -> None:
    assert is_over(writer, Intent(1, "acme/ab/k1", 7, fence)) is over


def test_intent_of_a_failed_channel_goes_when_the_task_has_ended(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", CONTENT)
    stand.channels.faulty["a"].fail_next("head", DOWN)
    assert stand.work(put.task_id) == "completed"
    # The put had arrived; only its proof failed.
    assert len(stand.channels.keys("a")) == 1
    sweeps = sweeper(stand)
    passes(sweeps)
    assert states(stand) == ["condemned", "stored"]
    assert len(stand.channels.keys("a")) == 1
    passes(sweeps)
    assert states(stand) == ["tombstone", "stored"]
    assert stand.channels.keys("a") == []
    assert stand.stored_bytes(put.version_id) == CONTENT


def test_intent_of_a_running_execution_stays(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", CONTENT)
    execution = stand.claim(put.task_id)
    gate = stand.channels.faulty["a"].hold("head")
    worker = Thread(lambda: stand.run(execution))
    assert gate.reached.wait(10)
    passes(sweeper(stand), 3)
    assert states(stand) == ["intent"]
    gate.release()
    assert worker.join_answer() == "completed"
    assert stand.stored_bytes(put.version_id) == CONTENT


def test_intent_that_the_checkpoint_names_stays_and_is_gone_on_with(
    stand: Stand, other: Stand
) -> None:
    put = stand.put(stand.bucket(), "large", LARGE)
    cut_short(stand, put.task_id, "put_part")()
    assert stand.state(put.task_id) == "pending"
    other.bench.set(put.task_id or 0, fence=9)
    passes(sweeper(other), 3)
    assert states(other) == ["intent"]
    assert other.work(put.task_id) == "completed"
    # One part had arrived; the other two are sent under the same key.
    assert other.channels.faulty["a"].calls["put_part"] == 2
    assert states(other) == ["stored"]


def test_young_intent_stays(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", CONTENT)
    stand.channels.faulty["a"].fail_always(DOWN, "put")
    stand.work(put.task_id)
    passes(sweeper(stand, min_age_seconds=3600.0), 3)
    assert states(stand) == ["intent", "stored"]


def test_late_write_under_a_tombstone_is_found_by_the_probe(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", CONTENT)
    stand.channels.faulty["a"].fail_always(DOWN, "put")
    stand.work(put.task_id)
    stand.channels.faulty["a"].heal()
    patient = sweeper(stand, tombstone_seconds=3600.0)
    passes(patient, 2)
    tombstone = stand.locations()[0]
    assert tombstone.state == "tombstone"
    late(stand, tombstone.key)
    passes(patient, 2)
    assert stand.channels.keys("a") == [tombstone.key]

    passes(sweeper(stand))
    assert stand.channels.keys("a") == []
    assert stand.locations()[0].probed_at is not None
    # Once: what comes later still is no business of the sweep.
    late(stand, tombstone.key)
    passes(sweeper(stand))
    assert stand.channels.keys("a") == [tombstone.key]


def late(stand: Stand, key: str) -> None:
    stand.channels.faulty["a"].inner.put(
        key,
        Body(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        deadline=Deadline(5),
    )


def test_condemned_location_on_a_channel_that_fails_is_tried_again_later(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", CONTENT)
    stand.channels.faulty["a"].fail_next("head", DOWN)
    stand.work(put.task_id)
    sweeps = sweeper(stand)
    passes(sweeps)
    stand.channels.faulty["a"].fail_always(DOWN, "delete")
    passes(sweeps)
    assert states(stand) == ["delete_failed", "stored"]
    stand.channels.faulty["a"].heal()
    passes(sweeps)
    assert states(stand) == ["delete_failed", "stored"]
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Location).values(next_try_at=Location.created_at))
    passes(sweeps)
    assert states(stand) == ["tombstone", "stored"]


# Open uploads


def uploads(stand: Stand) -> int:
    return len(list(stand.channels.faulty["a"].inner.list_uploads(deadline=Deadline(5))))


def test_open_upload_of_a_living_task_stays(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "large", LARGE)
    cut_short(stand, put.task_id, "put_part")()
    assert uploads(stand) == 1
    passes(sweeper(stand), 3)
    assert uploads(stand) == 1


def test_open_upload_of_an_ended_task_goes(stand: Stand) -> None:
    bucket = stand.bucket()
    put = stand.put(bucket, "large", LARGE)
    cut_short(stand, put.task_id, "put_part")()
    stand.remove(bucket, "large")
    assert stand.state(put.task_id) == "cancelled"
    passes(sweeper(stand), 3)
    assert uploads(stand) == 0


def test_open_upload_under_our_kind_of_key_that_nobody_names_goes(stand: Stand) -> None:
    inner = stand.channels.faulty["a"].inner
    inner.create_upload("acme/00/" + "0" * 32, deadline=Deadline(5))
    inner.create_upload("somebody/elses/file", deadline=Deadline(5))
    sweeps = sweeper(stand)
    passes(sweeps)
    assert uploads(stand) == 2
    passes(sweeps)
    assert uploads(stand) == 1


def test_error_while_listing_uploads_aborts_nothing_anywhere(stand: Stand) -> None:
    stand.channels.faulty["a"].inner.create_upload("acme/00/" + "0" * 32, deadline=Deadline(5))
    sweeps = sweeper(stand)
    passes(sweeps)
    stand.channels.faulty["b"].fail_always(DOWN, "list_uploads")
    report = sweeps.run_once(deadline=Deadline(60), check=lambda: None)
    assert list(report.errors) == ["uploads"]
    assert uploads(stand) == 1


# Blobs


def condemned_without_task(stand: Stand, state: str) -> int:
    bucket = stand.bucket()
    put = stand.put(bucket, "a.txt", CONTENT)
    stand.work(put.task_id)
    blob_id = stand.version(put.version_id).blob_id
    stand.remove(bucket, "a.txt")
    (task_id,) = stand.waiting("delete")
    if state == "deleting":
        stand.channels.faulty["a"].fail_next("delete", DOWN)
        stand.work(task_id)
        with stand.db.engine.begin() as connection:
            connection.execute(sa.update(Location).values(next_try_at=None))
    assert stand.blob(blob_id).state == state
    passes(sweeper(stand))
    assert stand.waiting("delete") == [task_id]
    stand.bench.set(task_id, state="cancelled")
    return blob_id


@pytest.mark.parametrize("state", ["condemned", "deleting"])
def test_blob_whose_delete_task_was_cancelled_gets_another(stand: Stand, state: str) -> None:
    blob_id = condemned_without_task(stand, state)
    sweeps = sweeper(stand)
    passes(sweeps, 2)
    (fresh,) = stand.waiting("delete")
    assert stand.work(fresh) == "completed"
    assert stand.blob(blob_id).state == "deleted"
    assert stand.channels.keys("a") == []


def test_staged_blob_without_a_version_is_given_up(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", CONTENT)
    blob_id = stand.version(put.version_id).blob_id
    passes(sweeper(stand), 2)
    assert stand.blob(blob_id).state == "staged"
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Version).values(state="superseded", staging_key=None))
        connection.execute(sa.update(Blob).values(state="staged"))
    passes(sweeper(stand))
    assert stand.blob(blob_id).state == "deleted"


# Reviews and ends


def test_overdue_review_is_decided(stand: Stand) -> None:
    put = stand.put(stand.bucket(doubtful_keywords=["hello"]), "a.txt", CONTENT)
    stand.work(put.task_id)
    sweeps = sweeper(stand)
    passes(sweeps, 2)
    assert stand.review_of(put.version_id).state == "doubtful"
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Review).values(deadline_at=Review.created_at))
    passes(sweeps)
    assert stand.review_of(put.version_id).state == "rejected"


def test_failed_settle_task_runs_again(stand: Stand) -> None:
    stand.register(kind_of("upload"))
    task_id = stand.bench.put(kind_of("upload"), SettleTask(task_id=1))
    stand.bench.set(task_id, state="failed")
    passes(sweeper(stand))
    assert stand.state(task_id) == "pending"


def test_version_whose_task_ended_unheard_gets_a_settle_task(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", CONTENT)
    assert put.task_id is not None
    stand.bench.set(put.task_id, state="failed", error_code="crashed")
    sweeps = sweeper(stand)
    passes(sweeps)
    assert stand.waiting("upload") == []
    passes(sweeps, 2)
    (settle,) = stand.waiting("upload")
    assert stand.task(settle)["kind"] == "upload.settle"
    assert stand.work(settle) == "completed"
    assert stand.version(put.version_id).state == "failed"
    passes(sweeps, 2)
    assert stand.waiting("upload") == []


def test_review_whose_task_was_cancelled_unheard_is_settled(stand: Stand) -> None:
    put = stand.put(stand.bucket(max_bytes=100), "a.txt", CONTENT)
    assert put.task_id is not None
    stand.bench.set(put.task_id, state="cancelled", error_code="cancelled")
    passes(sweeper(stand), 1)
    sweeps = sweeper(stand)
    passes(sweeps, 2)
    (settle,) = stand.waiting("review")
    assert stand.work(settle) == "completed"
    assert stand.review_of(put.version_id).state == "rejected"


def test_stopping_ends_a_pass_early(stand: Stand) -> None:
    def check() -> None:
        raise ShuttingDown("")

    with pytest.raises(ShuttingDown):
        sweeper(stand).run_once(deadline=Deadline(60), check=check)
