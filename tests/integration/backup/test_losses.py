"""Lost copies: found, brought back under a fresh key from the newest backup, or listed as lost."""

from __future__ import annotations

import os
from functools import partial
from hashlib import sha256

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.copies import CopyOrder, copy_object
from shared.catalog.models import BackupContent, Location, Loss, utc_clock, utc_now
from shared.catalog.puts import instant_upload
from shared.catalog.replicas import losses as replicas
from shared.catalog.restores.losses import FoundBy, losses_to_try, try_again
from shared.core.clock import Deadline
from shared.core.errors import ConflictError, NotFoundError
from shared.storage.body import Body
from shared.storage.errors import ChannelFull, ChannelUnavailable
from tests.support.backups import TARGET, BackupStand
from tests.support.handlers import PART_BYTES
from tests.support.outbox import Thread

DOWN = ChannelUnavailable("down")


def spoil(stand: BackupStand, channel: str, key: str, size: int) -> None:
    """Put other bytes of the same length in the place of an object."""
    inner = stand.channels.faulty[channel].inner
    inner.delete(key, deadline=Deadline(10))
    place(stand, channel, key, b"x" * size)


def place(stand: BackupStand, channel: str, key: str, body: bytes) -> None:
    """Put bytes under a key of a channel."""
    stand.channels.faulty[channel].inner.put(
        key, Body(body), sha256=sha256(body).hexdigest(), deadline=Deadline(10)
    )


@pytest.mark.parametrize("size", [5, 3 * PART_BYTES + 1])
def test_missing_content_comes_back_under_a_fresh_key(stand: BackupStand, size: int) -> None:
    bucket = stand.backed_up()
    body = os.urandom(size)
    version = stand.stored(bucket, "k", body)
    stand.back_up(bucket)
    current = stand.object(bucket, "k").current_version_id
    (old,) = stand.locations()
    stand.lose(version)
    task = stand.report(version)
    assert stand.work(task) == "completed"
    lost, new = stand.locations()
    assert (lost.id, lost.state) == (old.id, "condemned")
    assert (new.state, new.channel) == ("stored", "a")
    assert new.key != old.key
    assert stand.stored_bytes(version) == body
    assert stand.object(bucket, "k").current_version_id == current
    (loss,) = stand.losses()
    assert (loss.state, loss.restored_location_id) == ("restored", new.id)
    assert stand.report(version) is not None  # Another location: another loss.


def test_damaged_content_is_replaced_as_well(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    version = stand.stored(bucket, "k", b"right")
    stand.back_up(bucket)
    spoil(stand, "a", stand.locations()[0].key, 5)
    assert stand.work(stand.report(version)) == "completed"
    assert stand.stored_bytes(version) == b"right"


def test_what_is_there_after_all_is_left_alone(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    version = stand.stored(bucket, "k", b"k")
    task = stand.report(version)
    assert stand.report(version) == task
    assert stand.work(task) == "completed"
    assert [one.state for one in stand.locations()] == ["stored"]
    assert stand.losses()[0].state == "present"
    again = stand.report(version)
    assert again != task
    assert (stand.losses()[0].state, stand.losses()[0].round) == ("open", 2)


def test_a_channel_that_does_not_answer_proves_no_loss(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    version = stand.stored(bucket, "k", b"k")
    stand.back_up(bucket)
    task = stand.report(version)
    stand.channels.faulty["a"].fail_always(DOWN)
    assert stand.work(task) == "scheduled"
    assert [one.state for one in stand.locations()] == ["stored"]
    assert stand.losses()[0].state == "open"


def test_content_deleted_meanwhile_is_not_brought_back(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    version = stand.stored(bucket, "k", b"k")
    stand.back_up(bucket)
    stand.lose(version)
    task = stand.report(version)
    stand.remove(bucket, "k")
    assert stand.work(task) == "cancelled"
    assert stand.losses()[0].state == "superseded"
    assert stand.work_all("delete") == ["completed"]
    assert {one.state for one in stand.locations()} == {"tombstone"}


def test_content_deleted_between_copy_and_commit_stays_an_intent(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    version = stand.stored(bucket, "k", b"k")
    stand.back_up(bucket)
    stand.lose(version)
    execution = stand.claim(stand.report(version))
    gate = stand.channels.faulty["a"].hold("put")
    worker = Thread(lambda: stand.run(execution))
    assert gate.reached.wait(10)
    stand.remove(bucket, "k")
    gate.release()
    assert worker.join_answer() == "cancelled"
    assert [one.state for one in stand.locations()] == ["stored", "intent"]
    assert stand.losses()[0].state == "superseded"


def test_a_damaged_backup_is_passed_over_for_the_next_one(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    version = stand.stored(bucket, "k", b"k")
    stand.back_up(bucket)
    (content,) = stand.contents("stored")
    # A second target keeps the same content; the first one's copy is the newer, and damaged.
    stand.db.run_session(
        lambda session: session.add(
            BackupContent(
                target="b",
                tenant_id=content.tenant_id,
                kind="content",
                sha256=content.sha256,
                size_bytes=content.size_bytes,
                key="acme/ab/" + "0" * 32,
                state="stored",
                task_id=1,
                fence=1,
                created_at=content.created_at,
            )
        )
    )
    place(stand, "b", "acme/ab/" + "0" * 32, b"k")
    spoil(stand, TARGET, content.key, 1)
    stand.lose(version)
    assert stand.work(stand.report(version)) == "completed"
    assert stand.stored_bytes(version) == b"k"
    assert [one.state for one in stand.contents()] == ["damaged", "stored"]


def test_what_nobody_has_is_listed_and_tried_again_each_day(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    version = stand.stored(bucket, "k", b"k")
    stand.lose(version)
    task = stand.report(version)
    assert stand.work(task) == "failed"
    (loss,) = stand.losses()
    assert (loss.state, loss.error_code) == ("unrecoverable", "unrecoverable")
    assert stand.task(task)["error_code"] == "unrecoverable"
    assert stand.look(lambda session: losses_to_try(session, limit=10)) == []
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Loss).values(ended_at=utc_now(-86_500)))
    assert stand.look(lambda session: losses_to_try(session, limit=10)) == [loss.id]
    stand.db.run_session(lambda session: try_again(session, stand.catalogue, loss.id))
    (again,) = stand.waiting("restore")
    # The bytes have come up meanwhile, as a channel that was mounted wrongly would bring them.
    (location,) = stand.locations()
    place(stand, "a", location.key, b"k")
    assert stand.work(again) == "completed"
    assert stand.losses()[0].state == "present"


def test_a_backup_target_that_is_away_is_waited_for(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    version = stand.stored(bucket, "k", b"k")
    stand.back_up(bucket)
    stand.lose(version)
    task = stand.report(version)
    stand.channels.faulty[TARGET].fail_always(DOWN)
    assert stand.work(task) == "scheduled"
    assert stand.losses()[0].state == "open"
    stand.channels.faulty[TARGET].heal()
    assert stand.work(task) == "completed"
    assert stand.stored_bytes(version) == b"k"


def test_the_channel_switched_off_is_restored_to_the_next_of_the_bucket(
    stand: BackupStand,
) -> None:
    bucket = stand.backed_up()
    version = stand.stored(bucket, "k", b"k")
    stand.back_up(bucket)
    stand.lose(version)
    stand.channels.disabled.add("a")
    assert stand.work(stand.report(version)) == "completed"
    assert [(one.channel, one.state) for one in stand.locations()] == [
        ("a", "condemned"),
        ("b", "stored"),
    ]


def test_a_full_channel_is_passed_over_and_without_room_anywhere_it_waits(
    stand: BackupStand,
) -> None:
    bucket = stand.backed_up()
    version = stand.stored(bucket, "k", b"k")
    stand.back_up(bucket)
    stand.lose(version)
    for name in ("a", "b"):
        stand.channels.faulty[name].fail_next("put", ChannelFull("no space"))
    task = stand.report(version)
    assert stand.work(task) == "blocked"
    row = stand.task(task)
    assert (row["attempt"], row["resource_key"]) == (0, "channel:a")
    assert "no space" in row["error_detail"]
    stand.channels.faulty["a"].fail_next("put", ChannelFull("no space"))
    assert stand.work(task) == "completed"
    assert {(one.channel, one.state) for one in stand.locations()} == {
        ("a", "condemned"),
        ("a", "intent"),
        ("b", "intent"),
        ("b", "stored"),
    }
    assert stand.stored_bytes(version) == b"k"


def test_another_copy_that_is_lost_as_well_does_not_pass_for_the_good_one(
    stand: BackupStand,
) -> None:
    """Restored to the channel on which it stands, because the first one is switched off."""
    bucket = stand.backed_up()
    version = stand.stored(bucket, "k", b"right")
    stand.back_up(bucket)
    blob = stand.version(version).blob_id
    place(stand, "b", "default/other", b"wrong")

    def stands_there(session: Session) -> None:
        session.add(
            Location(
                blob_id=blob,
                channel="b",
                key="default/other",
                state="stored",
                task_id=1,
                fence=1,
                attempt=0,
                created_at=utc_clock(),
                stored_at=utc_clock(),
            )
        )

    stand.db.run_session(stands_there)
    stand.lose(version)
    task = stand.report(version)
    stand.channels.disabled.add("a")
    assert stand.work(task) == "completed"
    stand.work_all("restore")
    assert [loss.state for loss in stand.losses()] == ["restored", "restored"]
    (good,) = [one for one in stand.locations() if one.state == "stored"]
    assert stand.channels.read(good.channel, good.key) == b"right"


@pytest.mark.parametrize("stands", ["open", "unrecoverable", "superseded"])
def test_content_sent_again_while_its_only_copy_is_lost_is_stored(
    stand: BackupStand, stands: str
) -> None:
    bucket = stand.bucket(channels=("a", "b"))
    version = stand.stored(bucket, "k", b"precious")
    other = stand.stored(bucket, "other", b"precious")
    stand.lose(version)
    restoring = stand.report(version)
    if stands == "superseded":  # Deleted when its turn came, and wanted again within the grace.
        stand.remove(bucket, "k")
        stand.remove(bucket, "other")
    if stands != "open":
        stand.work(restoring)
    assert [one.state for one in stand.losses()] == [stands]
    facts = {"sha256": sha256(b"precious").hexdigest(), "size": 8}
    with pytest.raises(NotFoundError) as refused:
        stand.db.run_session(
            lambda session: instant_upload(session, stand.catalogue, bucket, "k", **facts)  # type: ignore[arg-type]
        )
    assert refused.value.code == "content_unknown"
    if stands != "superseded":
        order = CopyOrder(
            source_bucket_id=bucket, source_key="k", target_bucket_id=bucket, target_key="copy"
        )
        with pytest.raises(ConflictError) as lost:
            stand.db.run_session(lambda session: copy_object(session, stand.catalogue, order))
        assert lost.value.code == "content_lost"
    answer = stand.put(bucket, "k", b"precious")
    assert (answer.instant, answer.state) == (False, "pending")
    assert stand.work(answer.task_id) == "completed"
    assert stand.stored_bytes(answer.version_id) == b"precious"
    if stands == "superseded":
        # What would delete it finds it living again.
        assert set(stand.work_all("delete")) <= {"completed"}
    else:
        assert stand.stored_bytes(other) == b"precious"
    (new,) = [one for one in stand.locations() if one.state == "stored"]
    (loss,) = stand.losses()
    assert (loss.state, loss.restored_from, loss.restored_location_id) == (
        "restored",
        "upload",
        new.id,
    )
    assert {one.state for one in stand.locations() if one.id != new.id} == {"condemned"}
    if stands == "open":
        assert stand.work(restoring) == "completed"
    assert stand.put(bucket, "third", b"precious").instant


def test_the_copy_that_a_repair_is_to_replace_is_none(stand: BackupStand) -> None:
    """The first copy is lost and repaired from the replica, which is then lost as well."""
    bucket = stand.bucket(channels=("a",), replicas=("b",))
    stand.stored(bucket, "k", b"precious")
    assert stand.work_all("replica") == ["completed"]
    first, second = stand.locations()
    stand.empty("a")
    stand.empty("b")
    for location, answer in ((first, "repair"), (second, "restore")):
        assert answer == stand.db.run_session(
            partial(
                replicas.report_loss,
                catalogue=stand.catalogue,
                location_id=location.id,
                found_by=FoundBy.READ,
                detail="gone",
            )
        )
    again = stand.put(bucket, "k", b"precious")
    assert not again.instant
    assert stand.work(again.task_id) == "completed"
    stand.work_all("replica")
    stored = [one for one in stand.locations() if one.state == "stored"]
    assert sorted(one.channel for one in stored) == ["a", "b"]
    assert {one.id for one in stored}.isdisjoint({first.id, second.id})
    for one in stored:
        assert stand.channels.read(one.channel, one.key) == b"precious"
    assert [loss.state for loss in stand.losses()] == ["restored"]
    assert stand.stored_bytes(again.version_id) == b"precious"
