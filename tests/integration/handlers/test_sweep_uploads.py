"""Open multipart uploads by rule 2: aborted when the execution that wrote the intent is over."""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

import sqlalchemy as sa

from shared.catalog.invariants.leftovers import Ages, unneeded_uploads
from shared.catalog.models import BackupContent, Location
from shared.core.clock import Deadline, utc_now
from shared.core.errors import ShuttingDown
from shared.outbox.schema import tasks
from shared.storage.keys import fresh_key
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.handlers import PART_BYTES, Stand
from tests.support.outbox import Thread

LARGE = os.urandom(PART_BYTES * 3)
AGES = Ages(key=0, upload=0, tombstone=3600, staging=0)


def begun(stand: Stand) -> int:
    """Begin an upload, stop it between two parts, and return its task, which waits to go on."""
    put = stand.put(stand.bucket(), "large", LARGE)
    gate = stand.channels.faulty["a"].hold("put_part")
    execution = stand.claim(put.task_id)
    worker = Thread(lambda: stand.run(execution))
    assert gate.reached.wait(10)
    execution.stop(ShuttingDown(""))
    gate.release()
    worker.join_answer()
    assert put.task_id is not None
    return put.task_id


def change(stand: Stand, statement: Any) -> None:
    with stand.db.engine.begin() as connection:
        connection.execute(statement)


def long_ago() -> dt.datetime:
    return utc_now() - dt.timedelta(days=400)


def uploads(stand: Stand) -> int:
    return len(list(stand.channels.faulty["a"].inner.list_uploads(deadline=Deadline(5))))


def breaches(stand: Stand) -> int:
    inner = stand.channels.faulty["a"].inner
    return len(stand.look(lambda session: list(unneeded_uploads(session, inner, AGES))))


def test_upload_that_the_checkpoint_names_stays_whatever_its_age(stand: Stand) -> None:
    task_id = begun(stand)
    change(stand, sa.update(tasks).where(tasks.c.id == task_id).values(fence=tasks.c.fence + 5))
    change(stand, sa.update(Location).values(created_at=long_ago()))
    passes(sweeper(stand), 3)
    assert (uploads(stand), breaches(stand)) == (1, 0)
    assert stand.work(task_id) == "completed"
    assert (uploads(stand), breaches(stand)) == (0, 0)


def test_upload_of_an_older_fence_that_no_checkpoint_names_goes(stand: Stand) -> None:
    task_id = begun(stand)
    newer = {"fence": tasks.c.fence + 1, "checkpoint": {}}
    change(stand, sa.update(tasks).where(tasks.c.id == task_id).values(**newer))
    assert (uploads(stand), breaches(stand)) == (1, 1)
    passes(sweeper(stand), 2)
    assert (uploads(stand), breaches(stand)) == (0, 0)
    assert stand.work(task_id) == "completed"


def test_upload_whose_id_is_known_upstream_only_goes(stand: Stand) -> None:
    """The process died between the answer of the channel and the row that keeps it."""
    task_id = begun(stand)
    change(stand, sa.update(Location).values(upload_id=None))
    change(stand, sa.update(tasks).where(tasks.c.id == task_id).values(checkpoint={}))
    assert stand.work(task_id) == "completed"
    assert uploads(stand) == 1
    sweeps = sweeper(stand)
    passes(sweeps, 4)
    assert (uploads(stand), breaches(stand)) == (0, 0)


def test_second_upload_under_the_key_of_a_stored_copy_goes(stand: Stand) -> None:
    task_id = begun(stand)
    assert stand.work(task_id) == "completed"
    (stored,) = [one for one in stand.locations() if one.state == "stored"]
    stand.channels.faulty["a"].inner.create_upload(stored.key, deadline=Deadline(5))
    assert breaches(stand) == 1
    passes(sweeper(stand), 2)
    assert uploads(stand) == 0


def test_upload_of_a_young_tombstone_is_no_breach(stand: Stand) -> None:
    task_id = begun(stand)
    change(stand, sa.update(tasks).where(tasks.c.id == task_id).values(state="cancelled"))
    for age_seconds, expected in ((60, 0), (7200, 1)):
        buried = utc_now() - dt.timedelta(seconds=age_seconds)
        change(stand, sa.update(Location).values(state="tombstone", tombstone_at=buried))
        assert breaches(stand) == expected


def test_upload_of_a_backup_is_named_by_its_content(stand: Stand) -> None:
    task_id = begun(stand)
    inner = stand.channels.faulty["a"].inner
    keys = [fresh_key("acme"), fresh_key("manifests/acme/photos.2026")]
    for key in keys:
        inner.create_upload(key, deadline=Deadline(5))
        values = {
            "target": "a",
            "tenant_id": "acme",
            "kind": "content",
            "sha256": "0" * 64,
            "size_bytes": 1,
            "physical_key": key,
            "state": "intent",
            "task_id": task_id,
            "fence": 1_000,
            "created_at": utc_now(),
        }
        change(stand, sa.insert(BackupContent.__table__).values(**values))
    passes(sweeper(stand), 3)
    assert (uploads(stand), breaches(stand)) == (3, 0)
    change(stand, sa.update(BackupContent).values(state="tombstone", tombstone_at=long_ago()))
    assert breaches(stand) == 2
    passes(sweeper(stand), 2)
    assert (uploads(stand), breaches(stand)) == (1, 0)
