"""Uploads in parts that come to nothing, or have to wait: what is told, and what is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from shared.catalog.buckets import delete_bucket
from shared.catalog.conditions import ANY, Conditions
from shared.catalog.models import SessionState
from shared.catalog.uploading import removal
from shared.core.clock import Deadline
from shared.core.errors import ConflictError, NotFoundError
from shared.outbox.cancel import cancel
from shared.outbox.manual import retry
from shared.storage.channel import Part, Stored
from shared.storage.errors import ChannelError, ChannelFull, ChannelUnavailable
from shared.storage.faulty import FaultyChannel
from shared.storage.file import FileChannel
from shared.storage.staging import Staging
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.handlers import TENANT, Stand
from tests.support.uploads import (
    abort,
    backdate,
    begin,
    complete,
    files,
    frozen,
    outcome,
    parts,
    row,
    send,
    version_of,
)

PARTS = [os.urandom(200_000), os.urandom(150_000), b"the end"]
WHOLE = b"".join(PARTS)


def test_abort_ends_the_task_and_leaves_nothing(stand: Stand) -> None:
    upload = frozen(stand, stand.bucket(), "a", PARTS)
    assert abort(stand, upload)
    assert row(stand, upload) is None
    assert files(stand) == set()
    assert stand.state(upload.task_id) == "cancelled"
    with pytest.raises(NotFoundError):
        send(stand, upload, 1, b"late")
    with pytest.raises(ConflictError):
        retry(stand.bench.context, upload.task_id or 0, by="test")


class Tired(FaultyChannel):
    """Deletes so many times, as a pass has time for."""

    deletes_left = 0

    def delete(self, key: str, *, deadline: Deadline) -> None:
        if not self.deletes_left:
            raise ChannelUnavailable("no time is left")
        self.deletes_left -= 1
        super().delete(key, deadline=deadline)


def test_removal_that_was_cut_short_goes_on_with_what_is_left(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many parts there are and however slow their staging is: it comes to an end."""
    monkeypatch.setattr(removal, "_PAGE_PARTS", 2)
    tired = Tired(FileChannel(tmp_path / "bucket", name="staging", create=True))
    stand.staging = Staging(tired)
    upload = begin(stand, stand.bucket(), "a")
    for number in range(1, 8):
        send(stand, upload, number, b"part")
    for left in (5, 3, 1):
        # Two calls for each file.
        tired.deletes_left = 5
        with pytest.raises(ChannelUnavailable):
            abort(stand, upload)
        found = row(stand, upload)
        assert found is not None
        held = (found.part_count, found.received_bytes)
        assert (len(parts(stand, upload)), held) == (left, (left, 4 * left))
    tired.deletes_left = 5
    assert abort(stand, upload)
    assert (row(stand, upload), list(parts(stand, upload)), files(stand)) == (None, [], set())


def test_abort_stops_a_running_assembly(stand: Stand, other: Stand) -> None:
    bucket = stand.bucket()
    upload = frozen(stand, bucket, "a", PARTS)
    execution = other.claim(upload.task_id)
    assert abort(stand, upload)
    assert other.run(execution) == "cancelled"
    assert stand.work_all("upload") == []
    passes(sweeper(stand), 2)
    assert files(stand) == set()


class Overtaken(FaultyChannel):
    """Lets somebody else act once a file is whole, before its writer hears of it."""

    overtake: Callable[[], None] | None = None

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, deadline: Deadline
    ) -> Stored:
        stored = super().complete_upload(key, upload_id, parts, deadline=deadline)
        overtake, self.overtake = self.overtake, None
        if overtake is not None:
            overtake()
        return stored


@pytest.mark.parametrize("wanted", [None, (ANY,)])
def test_worker_that_lost_its_lease_does_no_harm_to_the_file_of_the_next(
    stand: Stand, other: Stand, tmp_path: Path, wanted: tuple[str, ...] | None
) -> None:
    """Both joined into one file; the other's commit even makes the late one's condition false."""
    channel = Overtaken(FileChannel(tmp_path / "staging", name="staging"))
    other.staging = Staging(channel)
    other.upload = replace(other.upload, staging=other.staging)
    conditions = Conditions(if_none_match=wanted)
    upload = frozen(stand, stand.bucket(), "a", PARTS, conditions=conditions)
    task_id = upload.task_id or 0
    execution = other.claim(task_id)

    def overtake() -> None:
        stand.bench.set(task_id, state="pending", owner=None, lease_until=None)
        assert stand.work(task_id) == "completed"

    channel.overtake = overtake
    assert other.run(execution) == "completed"
    version = version_of(stand, upload)
    assert files(stand) == {version.staging_key}
    assert stand.work_all("upload") == ["completed"]
    assert stand.stored_bytes(version.id) == WHOLE


def test_cancelled_task_fails_its_upload_which_can_be_tried_again(stand: Stand) -> None:
    upload = frozen(stand, stand.bucket(), "a", PARTS)
    assert upload.task_id is not None
    cancel(stand.bench.context, stand.bench.enqueuer, upload.task_id, by="test", tenant_id=TENANT)
    state, result = outcome(stand, upload)
    assert (state, result["code"]) == ("failed", "cancelled")
    passes(sweeper(stand), 2)
    assert len(files(stand)) == len(PARTS)
    retry(stand.bench.context, upload.task_id, by="test")
    assert stand.work(upload.task_id) == "completed"


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (ChannelFull("full"), ("put", "create_upload")),
        (ChannelUnavailable("away"), ("get",)),
    ],
)
def test_staging_that_is_full_or_away_is_waited_for(
    stand: Stand, tmp_path: Path, error: ChannelError, calls: tuple[str, ...]
) -> None:
    faulty = FaultyChannel(FileChannel(tmp_path / "bucket", name="staging", create=True))
    stand.staging = Staging(faulty)
    stand.upload = replace(stand.upload, staging=stand.staging)
    upload = frozen(stand, stand.bucket(), "a", PARTS)
    faulty.fail_always(error, *calls)
    assert stand.work(upload.task_id) == "scheduled"
    waiting = row(stand, upload)
    assert waiting is not None
    assert (waiting.state, waiting.result) == (SessionState.COMPLETING, None)
    faulty.heal()
    assert stand.work_all("upload") == ["completed"]
    assert stand.work_all("upload") == ["completed"]
    assert stand.stored_bytes(version_of(stand, upload).id) == WHOLE
    assert files(stand) == set()


def test_lost_part_is_a_failure_that_names_it(stand: Stand) -> None:
    upload = frozen(stand, stand.bucket(), "a", PARTS)
    stand.staging.remove(parts(stand, upload)[1].staging_key, deadline=Deadline(5))
    assert stand.work(upload.task_id) == "failed"
    assert outcome(stand, upload)[1]["code"] == "source_missing"


def test_expired_upload_takes_no_part_and_is_swept(stand: Stand) -> None:
    bucket = stand.bucket()
    upload = begin(stand, bucket, "a")
    send(stand, upload, 1, b"one")
    passes(sweeper(stand), 2)
    assert len(files(stand)) == 1
    backdate(stand, upload)
    with pytest.raises(ConflictError) as refused:
        send(stand, upload, 2, b"two")
    assert refused.value.code == "upload_expired"
    with pytest.raises(ConflictError):
        complete(stand, upload)
    # Begun again in time it lives on with what it has.
    assert begin(stand, bucket, "a").id == upload.id
    send(stand, upload, 2, b"two")
    backdate(stand, upload)
    passes(sweeper(stand), 2)
    assert row(stand, upload) is None
    assert files(stand) == set()


def test_upload_into_a_bucket_that_is_gone_fails_or_is_swept(stand: Stand) -> None:
    bucket = stand.bucket()
    upload = frozen(stand, bucket, "a", PARTS)
    left = begin(stand, bucket, "b")
    send(stand, left, 1, b"one")
    with pytest.raises(ConflictError) as refused:
        stand.db.run_session(lambda session: delete_bucket(session, TENANT, "photos"))
    assert refused.value.code == "bucket_not_empty", "it was acknowledged"
    task_id = upload.task_id or 0
    cancel(stand.bench.context, stand.bench.enqueuer, task_id, by="test", tenant_id=TENANT)
    stand.db.run_session(lambda session: delete_bucket(session, TENANT, "photos"))
    retry(stand.bench.context, task_id, by="test")
    assert stand.work(task_id) == "failed"
    assert outcome(stand, upload)[1]["code"] == "bucket_not_found"
    passes(sweeper(stand), 2)
    assert row(stand, left) is None
    assert files(stand) == set()
