"""Copies and moves over channels: bytes first, then the name; killed at every step on MariaDB."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.buckets import delete_bucket
from shared.catalog.copies import CopyBegun, CopyOrder, copy_object
from shared.catalog.models import Bucket, Copy, Location, Version, VersionState, utc_clock
from shared.catalog.object_copies import ObjectCopyCommit, read_copy
from shared.catalog.removals import start_removal
from shared.core.errors import ConflictError, TransientError
from shared.outbox.manual import retry
from shared.storage.errors import ChannelUnavailable
from tests.integration.handlers.test_crashes import die_and_go_on
from tests.integration.handlers.test_replica_crashes import check
from tests.support.handlers import TENANT, Stand
from tests.support.uploads import frozen, version_of

CONTENT = b"hello world"
STEPS = [
    "object.claimed",
    "object.after_intent",
    "object.after_checkpoint",
    "object.after_bytes",
    "object.before_commit",
    "complete.before_commit",
    "complete.after_commit",
    "object.after_commit",
]


class Copying:
    """An object on `a`, and a bucket whose channels are `b` and `c`."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.source = stand.bucket("source", channels=["a"])
        self.target = stand.bucket("target", channels=["b", "c"])
        put = stand.put(self.source, "x", CONTENT)
        assert stand.work(put.task_id) == "completed"
        self.version_id = put.version_id

    def begin(self, *, is_move: bool = False) -> int:
        """Ask for the copy; returns its task."""
        order = CopyOrder(
            source_bucket_id=self.source,
            source_key="x",
            target_bucket_id=self.target,
            target_key="y",
            is_move=is_move,
        )
        stand = self.stand
        begun = stand.db.run_session(lambda session: copy_object(session, stand.catalogue, order))
        assert isinstance(begun, CopyBegun)
        return begun.task_id

    def version(self) -> int:
        """Return the target's stored version."""
        version_id = self.stand.object(self.target, "y").current_version_id
        assert version_id is not None
        return version_id


@pytest.fixture
def copying(stand: Stand) -> Copying:
    return Copying(stand)


@pytest.mark.parametrize("is_move", [False, True])
def test_bytes_come_to_the_targets_channel(copying: Copying, is_move: bool) -> None:
    stand = copying.stand
    task = copying.begin(is_move=is_move)
    assert stand.work(task) == "completed"
    version = stand.version(copying.version())
    places = {one.channel: one.state for one in stand.locations(version.blob_id)}
    assert places == {"a": "stored", "b": "stored"}
    assert stand.task(task)["result"]["bytes_sent"] == len(CONTENT)
    source = stand.object(copying.source, "x")
    assert source.current_version_id == (None if is_move else copying.version_id)


def test_the_next_channel_when_the_first_fails(copying: Copying) -> None:
    stand = copying.stand
    stand.channels.faulty["b"].fail_always(ChannelUnavailable("down"))
    assert stand.work(copying.begin()) == "completed"
    assert len(stand.channels.keys("c")) == 1


def test_waits_for_channels_that_take_nothing(copying: Copying) -> None:
    stand = copying.stand
    stand.channels.disabled |= {"b", "c"}
    task = copying.begin()
    assert stand.work(task) == "scheduled"
    assert stand.task(task)["attempt"] == 0
    stand.channels.disabled.clear()
    for name in ("b", "c"):
        stand.channels.faulty[name].fail_always(ChannelUnavailable("down"))
    for attempt in (1, 2, 3):
        assert stand.work(task) == "scheduled"
        assert stand.task(task)["attempt"] == attempt
    # Both breakers are open.
    stand.work(task)
    assert stand.task(task)["attempt"] == 3


def test_bytes_that_left_the_channel_before_the_commit_are_brought(copying: Copying) -> None:
    """They stood there for another bucket, whose rule has ended."""
    stand = copying.stand
    task = copying.begin()
    blob = stand.version(copying.version_id).blob_id

    def come(session: Session) -> int:
        place = Location(
            blob_id=blob,
            channel="b",
            key="default/other",
            state="stored",
            task_id=1,
            fence=1,
            attempt=0,
            created_at=utc_clock(),
        )
        session.add(place)
        session.flush()
        return place.id

    place_id = stand.db.run_session(come)
    facts = stand.look(lambda session: read_copy(session, copy_of(session)))
    assert facts is not None
    assert facts.is_placed
    stand.db.run_session(
        lambda session: setattr(session.get_one(Location, place_id), "state", "condemned")
    )
    commit = ObjectCopyCommit(stand.catalogue, copy_id=facts.copy_id, task_id=task)

    def write(session: Session) -> None:
        commit.lock(session)
        commit.apply(session)

    with pytest.raises(TransientError):
        stand.db.run_session(write)
    assert stand.work(task) == "completed"
    blob = stand.version(copying.version()).blob_id
    assert [one.channel for one in stand.locations(blob) if one.state == "stored"] == ["a", "b"]


def copy_of(session: Session) -> int:
    """Return the only copy."""
    return session.scalars(sa.select(Copy.id)).one()


def test_a_newer_write_wins(copying: Copying) -> None:
    stand = copying.stand
    task = copying.begin()
    put = stand.put(copying.target, "y", b"newer")
    assert stand.work(put.task_id) == "completed"
    assert stand.work(task) == "cancelled"
    assert copying.version() == put.version_id


REJECTING = {"reject_keywords": ["forbidden"]}


def passed(stand: Stand, bucket: int) -> None:
    """Let the source's content pass the bucket's review."""
    seed = stand.put(bucket, "seed", CONTENT)
    assert stand.work(seed.task_id) == "completed"
    assert stand.work_all("upload") == ["completed"]
    stand.remove(bucket, "seed")
    stand.work_all("delete")


@pytest.mark.parametrize("when", ["before the review", "after the review", "at a retry"])
def test_a_newer_write_that_is_rejected_ends_no_copy(copying: Copying, when: str) -> None:
    stand = copying.stand
    stand.bucket("target", channels=["c"], **REJECTING)
    passed(stand, copying.target)
    stand.bucket("target", channels=["b"], **REJECTING)
    task = copying.begin()
    put = stand.put(copying.target, "y", b"this is forbidden")
    assert stand.version(put.version_id).state == "reviewing"
    if when != "before the review":
        assert stand.work(put.task_id) == "completed"
    if when == "at a retry":
        stand.channels.gone.add("b")
        while stand.work(task) != "failed":
            pass
        stand.channels.gone.clear()
        retry(stand.bench.context, task, by="test")
    assert stand.work(task) == "completed"
    if when == "before the review":
        assert stand.work(put.task_id) == "completed"
    assert stand.version(put.version_id).state == "blocked"
    copied = stand.version(copying.version())
    assert (copied.state, copied.sha256) == ("stored", stand.version(copying.version_id).sha256)
    # What is asked for once it is there is a later write than both.
    stand.remove(copying.target, "y")
    assert stand.object(copying.target, "y").served_version_id is None


def test_a_newer_write_that_was_stored_has_won_though_a_later_review_blocks_it(
    copying: Copying,
) -> None:
    stand = copying.stand
    task = copying.begin()
    put = stand.put(copying.target, "y", b"newer")
    assert stand.work(put.task_id) == "completed"

    def block(session: Session) -> None:
        session.get_one(Version, put.version_id).state = VersionState.BLOCKED

    stand.db.run_session(block)
    assert stand.work(task) == "cancelled"


@pytest.mark.parametrize("when", ["before the copy", "after the copy"])
def test_a_newer_write_that_passes_wins_over_the_copy(copying: Copying, when: str) -> None:
    stand = copying.stand
    stand.bucket("target", channels=["c"], **REJECTING)
    passed(stand, copying.target)
    stand.bucket("target", channels=["b"], **REJECTING)
    task = copying.begin()
    put = stand.put(copying.target, "y", b"newer and harmless")
    if when == "before the copy":
        assert stand.work(put.task_id) == "completed"
        assert stand.work(task) == "cancelled"
    else:
        assert stand.work(task) == "completed"
        assert stand.object(copying.target, "y").served_version_id == copying.version()
        assert stand.work(put.task_id) == "completed"
    assert stand.work_all("upload") == ["completed"]
    assert copying.version() == put.version_id
    assert stand.stored_bytes(put.version_id) == b"newer and harmless"


def test_a_deletion_ends_a_copy_behind_which_a_write_is_in_review(copying: Copying) -> None:
    stand = copying.stand
    stand.bucket("target", channels=["c"], **REJECTING)
    passed(stand, copying.target)
    stand.bucket("target", channels=["b"], **REJECTING)
    task = copying.begin()
    put = stand.put(copying.target, "y", b"this is forbidden")
    assert stand.work(put.task_id) == "completed"
    stand.remove(copying.target, "y")
    assert stand.work(task) == "cancelled"
    assert stand.object(copying.target, "y").served_version_id is None


def test_a_deletion_by_prefix_ends_a_copy(copying: Copying) -> None:
    stand = copying.stand
    task = copying.begin()
    with pytest.raises(ConflictError) as refused:
        stand.db.run_session(lambda session: delete_bucket(session, TENANT, "target"))
    assert refused.value.code == "bucket_not_empty", "it was acknowledged"
    stand.channels.disabled |= {"b", "c"}
    assert stand.work(task) == "scheduled"
    made = stand.db.run_session(
        lambda session: start_removal(
            session, stand.catalogue, session.get_one(Bucket, copying.target), prefix=""
        )
    )
    assert stand.work(made.task_id) == "completed"
    assert stand.work(task) == "cancelled"
    with pytest.raises(ConflictError):
        retry(stand.bench.context, task, by="test")
    assert stand.object(copying.target, "y").served_version_id is None
    # Not so one that is asked for after it.
    stand.channels.disabled.clear()
    assert stand.work(copying.begin()) == "completed"
    assert stand.version(copying.version()).state == "stored"


def test_an_upload_in_parts_that_is_rejected_ends_no_copy(copying: Copying) -> None:
    stand = copying.stand
    stand.bucket("target", channels=["c"], **REJECTING)
    passed(stand, copying.target)
    stand.bucket("target", channels=["b"], **REJECTING)
    task = copying.begin()
    upload = frozen(stand, copying.target, "y", [b"this is ", b"forbidden"])
    assert stand.work(task) == "completed"
    assert stand.work(upload.task_id) == "completed"
    stand.work_all("review")
    assert version_of(stand, upload).state == "blocked"
    assert stand.version(copying.version()).state == "stored"


def test_a_deletion_ends_a_copy_and_the_upload_in_parts_behind_it(copying: Copying) -> None:
    stand = copying.stand
    task = copying.begin()
    upload = frozen(stand, copying.target, "y", [b"in ", b"parts"])
    stand.remove(copying.target, "y")
    assert stand.state(upload.task_id) == "cancelled"
    # Nor do they keep the bucket.
    stand.db.run_session(lambda session: delete_bucket(session, TENANT, "target"))
    assert stand.work(task) == "cancelled"
    assert stand.object(copying.target, "y").served_version_id is None


@pytest.mark.databases("mariadb")
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_every_step(copying: Copying, tmp_path: Path, step: str) -> None:
    stand = copying.stand
    task = copying.begin(is_move=True)
    die_and_go_on(stand, tmp_path, task, step)
    version_id = copying.version()
    assert stand.version(version_id).state == "stored"
    assert stand.object(copying.source, "x").current_version_id is None
    check(stand)
