"""One more copy of a blob: from any source, gone on with after a stop, proven, committed once."""

from __future__ import annotations

import hashlib
import os

import pydantic
import pytest
from sqlalchemy.orm import Session

from shared.catalog import fenced
from shared.catalog.copying import (
    Copied,
    CopyCommit,
    CopyDeps,
    CopyJob,
    Damage,
    NoSource,
    SourceCopy,
    copy_blob,
    read_sources,
)
from shared.catalog.models import Location, utc_clock
from shared.core.clock import Deadline
from shared.core.errors import ShuttingDown, SupersededError
from shared.core.outcomes import Snooze
from shared.outbox import Execution
from shared.outbox.kinds import Kind
from shared.storage.body import Body
from shared.storage.errors import ChannelRefused, ChannelUnavailable, SourceUnavailable
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.handlers import PART_BYTES, Stand

SMALL = b"hello world"
LARGE = os.urandom(PART_BYTES * 3 + 5)


class Nothing(pydantic.BaseModel):
    """The payload of a task that says nothing."""


class Copying:
    """A blob stored on `a`, and tasks that copy it to `b`."""

    def __init__(self, stand: Stand, content: bytes) -> None:
        self.stand = stand
        self.content = content
        self.damage: list[Damage] = []
        self.bucket = stand.bucket(channels=["a"])
        put = stand.put(self.bucket, "x", content)
        assert stand.work(put.task_id) == "completed"
        self.blob = stand.blob(stand.version(put.version_id).blob_id)
        self.kind = Kind(name="replica.test", payload=Nothing)
        stand.register(self.kind)
        self.deps = CopyDeps(db=stand.db, channels=stand.channels, on_damage=self.damage.append)

    def job(self, *sources: SourceCopy) -> CopyJob:
        found = self.stand.look(lambda session: read_sources(session, self.blob.id, without="b"))
        return CopyJob(
            self.blob.id, self.blob.size_bytes, self.blob.sha256, (*sources, *found), "b"
        )

    def claim(self) -> Execution:
        task = self.stand.db.run_session(
            lambda session: self.stand.enqueue(session, self.kind, Nothing(), tenant_id="acme")
        )
        return self.stand.claim(task.id)

    def again(self, execution: Execution) -> Execution:
        """Let another execution go on."""
        self.stand.bench.set(execution.task.id, state="pending", owner=None, lease_until=None)
        return self.stand.claim(execution.task.id)

    def commit(self, execution: Execution, job: CopyJob, copied: Copied | Snooze) -> int:
        assert isinstance(copied, Copied)
        commit = CopyCommit(job, copied)
        return fenced.complete(
            execution, self.stand.db, lock=commit.lock, body=lambda tx: commit.apply(tx.session)
        )

    def read(self, location_id: int) -> bytes:
        row = self.stand.look(lambda session: session.get_one(Location, location_id))
        assert row.state == "stored"
        return self.stand.channels.read(row.channel, row.key)


@pytest.fixture
def small(stand: Stand) -> Copying:
    return Copying(stand, SMALL)


@pytest.fixture
def large(stand: Stand) -> Copying:
    return Copying(stand, LARGE)


@pytest.mark.parametrize("content", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
def test_copies_and_commits(stand: Stand, content: bytes) -> None:
    copying = Copying(stand, content)
    job, execution = copying.job(), copying.claim()
    copied = copy_blob(execution, copying.deps, job)
    assert isinstance(copied, Copied)
    assert [one.state for one in stand.locations()] == ["stored", "intent"]
    location_id = copying.commit(execution, job, copied)
    assert copying.read(location_id) == content
    assert (copied.bytes_sent, copied.method) == (len(content), "stream")
    assert copying.damage == []


def test_goes_on_from_the_parts_of_an_earlier_execution_with_another_source(
    large: Copying, stand: Stand
) -> None:
    execution, job = large.claim(), large.job()
    stand.channels.faulty["b"].fail_next("complete_upload", ShuttingDown(""))
    with pytest.raises(ShuttingDown):
        copy_blob(execution, large.deps, job)
    execution = large.again(execution)
    copied = copy_blob(execution, large.deps, job)
    assert isinstance(copied, Copied)
    assert (copied.method, copied.bytes_sent) == ("resumed", 0)
    assert large.read(large.commit(execution, job, copied)) == LARGE
    assert len(stand.locations()) == 2


def test_next_source_when_the_first_is_away_or_gone(small: Copying, stand: Stand) -> None:
    execution = small.claim()
    job = small.job(SourceCopy(None, "nowhere", "k"), SourceCopy(None, "a", "acme/00/missing"))
    copied = copy_blob(execution, small.deps, job)
    assert isinstance(copied, Copied)
    assert copied.source == job.sources[2]
    assert [(one.source.key, one.code) for one in small.damage] == [
        ("acme/00/missing", "source_missing")
    ]
    assert small.read(small.commit(execution, job, copied)) == SMALL


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
def test_a_damaged_source_is_told_and_never_kept(stand: Stand, content: bytes) -> None:
    copying = Copying(stand, content)
    other = bytearray(content)
    other[-1] ^= 1
    put_bytes(stand, "a", "acme/00/damaged", bytes(other))
    execution = copying.claim()
    job = copying.job(SourceCopy(None, "a", "acme/00/damaged"))
    copied = copy_blob(execution, copying.deps, job)
    assert isinstance(copied, Copied)
    assert [one.code for one in copying.damage] == [
        "source_damaged" if content == SMALL else "source_sha256"
    ]
    assert copying.read(copying.commit(execution, job, copied)) == content
    # What had been made of the damaged bytes is swept.
    passes(sweeper(stand), 2)
    assert len(stand.channels.keys("b")) == 1
    assert list(stand.channels.faulty["b"].inner.list_uploads(deadline=Deadline(5))) == []


def test_inside_a_channel_the_provider_copies(small: Copying, stand: Stand) -> None:
    put_bytes(stand, "b", "acme/00/old", SMALL)
    job = CopyJob(
        small.blob.id, len(SMALL), small.blob.sha256, (SourceCopy(None, "b", "acme/00/old"),), "b"
    )
    execution = small.claim()
    copied = copy_blob(execution, small.deps, job)
    assert isinstance(copied, Copied)
    assert (copied.method, copied.bytes_sent) == ("server", 0)
    assert stand.channels.faulty["b"].calls["put"] == 0
    assert small.read(small.commit(execution, job, copied)) == SMALL


def test_what_the_provider_does_not_copy_goes_through_here_under_another_key(
    small: Copying, stand: Stand
) -> None:
    put_bytes(stand, "b", "acme/00/old", SMALL)
    job = CopyJob(
        small.blob.id, len(SMALL), small.blob.sha256, (SourceCopy(None, "b", "acme/00/old"),), "b"
    )
    stand.channels.faulty["b"].fail_next("copy_remote", ChannelRefused("not implemented"))
    execution = small.claim()
    copied = copy_blob(execution, small.deps, job)
    assert isinstance(copied, Copied)
    assert copied.method == "stream"
    assert [one.state for one in stand.locations()] == ["stored", "intent", "intent"]
    assert small.read(small.commit(execution, job, copied)) == SMALL


def test_a_damaged_source_that_the_provider_copies_is_found(small: Copying, stand: Stand) -> None:
    put_bytes(stand, "b", "acme/00/old", b"HELLO WORLD")
    job = small.job(SourceCopy(None, "b", "acme/00/old"))
    execution = small.claim()
    copied = copy_blob(execution, small.deps, job)
    assert isinstance(copied, Copied)
    assert [one.source.channel for one in small.damage] == ["b"]
    assert small.read(small.commit(execution, job, copied)) == SMALL


def test_only_damaged_sources(small: Copying) -> None:
    job = CopyJob(
        small.blob.id, len(SMALL), small.blob.sha256, (SourceCopy(None, "a", "acme/00/no"),), "b"
    )
    with pytest.raises(NoSource, match="source_missing"):
        copy_blob(small.claim(), small.deps, job)
    with pytest.raises(NoSource, match="there is none"):
        copy_blob(small.claim(), small.deps, CopyJob(small.blob.id, 1, small.blob.sha256, (), "b"))


def test_a_source_that_is_away_is_tried_later(small: Copying, stand: Stand) -> None:
    stand.channels.faulty["a"].fail_always(ChannelUnavailable("down"), "get", "head")
    with pytest.raises(SourceUnavailable, match="down"):
        copy_blob(small.claim(), small.deps, small.job())
    assert small.damage == []


def test_the_targets_failure_is_its_own(large: Copying, stand: Stand) -> None:
    execution = large.claim()
    stand.channels.faulty["b"].fail_next("put_part", ChannelRefused("no"))
    with pytest.raises(ChannelRefused):
        copy_blob(execution, large.deps, large.job())
    assert "channel_failed" in stand.event_types(execution.task.id)
    assert list(stand.channels.faulty["b"].inner.list_uploads(deadline=Deadline(5))) == []
    assert stand.task(execution.task.id)["checkpoint"] == {"current": None}


def test_waits_uncounted_for_a_target_that_is_away(small: Copying, stand: Stand) -> None:
    stand.channels.disabled.add("b")
    answer = copy_blob(small.claim(), small.deps, small.job())
    assert isinstance(answer, Snooze)
    assert answer.after_seconds >= 60
    stand.channels.disabled.clear()
    stand.channels.faulty["b"].fail_always(ChannelUnavailable("down"))
    for _ in range(3):
        with pytest.raises(ChannelUnavailable):
            copy_blob(small.claim(), small.deps, small.job())
    answer = copy_blob(small.claim(), small.deps, small.job())
    assert isinstance(answer, Snooze)
    assert 20 < answer.after_seconds < 60
    assert stand.channels.faulty["b"].calls["put"] == 3


def put_bytes(stand: Stand, channel: str, key: str, content: bytes) -> None:
    """Put bytes on a channel that nobody knows of."""
    digest = hashlib.sha256(content).hexdigest()
    stand.channels.faulty[channel].inner.put(
        key, Body(content), sha256=digest, deadline=Deadline(5)
    )


# -- the commit -------------------------------------------------------------------------------


def change_blob(copying: Copying, **values: object) -> None:
    def write(session: Session) -> None:
        blob = session.get_one(type(copying.blob), copying.blob.id)
        for name, value in values.items():
            setattr(blob, name, value)

    copying.stand.db.run_session(write)


@pytest.mark.parametrize("state", ["condemned", "deleting"])
def test_nothing_is_stored_for_a_blob_that_is_not_live(small: Copying, state: str) -> None:
    execution, job = small.claim(), small.job()
    copied = copy_blob(execution, small.deps, job)
    change_blob(small, state=state)
    with pytest.raises(SupersededError, match=state):
        small.commit(execution, job, copied)
    assert [one.state for one in small.stand.locations()] == ["stored", "intent"]
    with pytest.raises(SupersededError, match=state):
        copy_blob(small.claim(), small.deps, job)


def test_second_copy_on_a_channel_is_left_to_the_sweep(small: Copying, stand: Stand) -> None:
    job = small.job()
    one, two = small.claim(), small.claim()
    first, second = (copy_blob(execution, small.deps, job) for execution in (one, two))
    stored = small.commit(one, job, first)
    assert small.commit(two, job, second) == stored
    passes(sweeper(stand), 2)
    assert len(stand.channels.keys("b")) == 1


def test_a_swept_intent_is_not_stored(small: Copying, stand: Stand) -> None:
    execution, job = small.claim(), small.job()
    copied = copy_blob(execution, small.deps, job)
    assert isinstance(copied, Copied)

    def sweep(session: Session) -> None:
        row = session.get_one(Location, copied.location_id)
        row.state, row.condemned_at = "condemned", utc_clock()

    stand.db.run_session(sweep)
    with pytest.raises(Exception, match="a sweep has taken"):
        small.commit(execution, job, copied)
