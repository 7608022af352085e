"""The replica protocol: planned where a content becomes live, copied, committed if still wanted."""

from __future__ import annotations

import dataclasses
import os

import pytest
from sqlalchemy.orm import Session

from services.api.content import ContentReader, Door, Place
from services.replica import handlers as replicating
from shared.catalog.models import Bucket, Location, LocationState, utc_clock
from shared.catalog.payloads import CopyReplica
from shared.catalog.reads import Source, open_version
from shared.catalog.replicas.hooks import ReplicaHooks
from shared.catalog.replicas.losses import report_loss
from shared.catalog.restores.losses import FoundBy
from shared.core.errors import ConflictError, LeaseLost
from shared.outbox.kinds import EndedTask
from shared.outbox.manual import retry
from shared.storage.errors import ChannelUnavailable, ObjectMissing
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.handlers import PART_BYTES, Stand
from tests.support.outbox import Thread
from tests.support.replicas import Copies

CONTENT = b"hello world"
LARGE = os.urandom(PART_BYTES * 3 + 1)


@pytest.fixture
def copies(stand: Stand) -> Copies:
    return Copies(stand)


@pytest.mark.parametrize("content", [CONTENT, LARGE], ids=["small", "large"])
def test_a_stored_content_comes_to_the_other_channels(stand: Stand, content: bytes) -> None:
    copies = Copies(stand, replicas=("b", "c"))
    blob = copies.store("x", content)
    assert copies.states() == ["pending", "pending"]
    assert stand.work_all("replica") == ["completed", "completed"]
    assert copies.states() == ["completed", "completed"]
    assert copies.places(blob) == {"a": ["stored"], "b": ["stored"], "c": ["stored"]}
    assert copies.content(blob, "b") == copies.content(blob, "c") == content
    row = copies.replica(blob)
    assert row.location_id == copies.stored(blob, "b").id
    result = stand.task(row.task_id)["result"]
    assert (result["channel"], result["bytes_sent"], result["source"]) == ("b", len(content), "a")


def test_nothing_is_planned_without_a_rule_or_twice_for_a_content(stand: Stand) -> None:
    plain = stand.bucket("plain", channels=["a"])
    stand.work(stand.put(plain, "x", CONTENT).task_id)
    assert stand.waiting("replica") == []
    copies = Copies(stand)
    # The same content again, instantly: now a bucket wants it elsewhere as well.
    blob = copies.store("x", CONTENT)
    assert len(stand.waiting("replica")) == 1
    copies.store("y", CONTENT)
    assert len(stand.waiting("replica")) == 1
    stand.work_all("replica")
    copies.store("z", CONTENT)
    assert stand.waiting("replica") == []
    assert copies.places(blob) == {"a": ["stored"], "b": ["stored"]}


def test_a_first_copy_on_the_replica_channel_counts(stand: Stand) -> None:
    copies = Copies(stand)
    bucket = stand.bucket(channels=["a", "b"], replicas=["b"])
    stand.channels.faulty["a"].fail_always(ChannelUnavailable("down"))
    put = stand.put(bucket, "x", CONTENT)
    assert stand.work(put.task_id) == "completed"
    assert stand.waiting("replica") == []
    assert copies.states() == ["completed"]


def test_the_commit_is_refused_when_the_content_is_not_live_any_more(
    copies: Copies, stand: Stand
) -> None:
    blob = copies.store("x", CONTENT)
    (task,) = stand.waiting("replica")
    execution = stand.claim(task)
    stand.remove(copies.bucket, "x")
    assert stand.run(execution) == "cancelled"
    assert copies.replica(blob).state == "gone"
    assert copies.places(blob) == {"a": ["stored"]}
    passes(sweeper(stand), 2)
    assert stand.work_all("delete") == ["completed"]
    assert stand.channels.keys("a") == stand.channels.keys("b") == []


def test_condemned_between_the_bytes_and_the_commit(
    copies: Copies, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = copies.store("x", CONTENT)
    (task,) = stand.waiting("replica")

    def point(name: str) -> None:
        if name == "replica.before_commit":
            stand.remove(copies.bucket, "x")

    monkeypatch.setattr(replicating, "failpoint", point)
    assert stand.work(task) == "cancelled"
    assert stand.task(task)["error_code"] == "superseded"
    assert copies.places(blob) == {"a": ["stored"], "b": ["intent"]}
    # Put again before the grace is over: the content lives, and the copy is planned anew.
    copies.store("y", CONTENT)
    assert stand.work_all("replica") == ["completed"]
    passes(sweeper(stand), 2)
    assert len(stand.channels.keys("b")) == 1
    assert copies.content(blob, "b") == CONTENT


def test_the_commit_is_refused_when_the_rule_is_gone(copies: Copies, stand: Stand) -> None:
    blob = copies.store("x", CONTENT)
    copies.rules()
    assert stand.work_all("replica") == ["cancelled"]
    assert copies.replica(blob).state == "gone"
    assert [(rule.channel, rule.state) for rule in copies.rule_rows()] == [("b", "removed")]


def test_a_dead_target_waits_uncounted_and_a_failure_is_retried(
    copies: Copies, stand: Stand
) -> None:
    blob = copies.store("x", CONTENT)
    (task,) = stand.waiting("replica")
    stand.channels.faulty["b"].fail_always(ChannelUnavailable("down"))
    for attempt in (1, 2, 3):
        assert stand.work(task) == "scheduled"
        assert stand.task(task)["attempt"] == attempt
    # The breaker is open by now.
    stand.work(task)
    assert stand.task(task)["attempt"] == 3
    assert copies.replica(blob).state == "pending"
    # Another bucket's work goes on.
    assert Copies(stand, replicas=("c",)).store("y", b"other")
    assert "completed" in stand.work_all("replica")


def test_a_failure_for_good_can_be_retried_by_hand(copies: Copies, stand: Stand) -> None:
    blob = copies.store("x", CONTENT)
    (task,) = stand.waiting("replica")
    stand.bench.set(task, max_attempts=1)
    stand.channels.faulty["b"].fail_next("put", ChannelUnavailable("down"))
    assert stand.work(task) == "failed"
    row = copies.replica(blob)
    assert (row.state, row.error_code, row.tries) == ("failed", "channel_unavailable", 1)
    retry(stand.bench.context, task, by="me")
    assert copies.replica(blob).state == "pending"
    assert stand.work(task) == "completed"
    with pytest.raises(ConflictError):
        retry(stand.bench.context, task, by="me")
    assert copies.replica(blob).state == "completed"


def test_completed_stays_whatever_an_older_execution_says(
    copies: Copies, stand: Stand, other: Stand
) -> None:
    blob = copies.store("x", CONTENT)
    (task,) = stand.waiting("replica")
    late = stand.claim(task)
    stand.bench.set(task, state="pending", owner=None, lease_until=None)
    assert other.work(task) == "completed"
    with pytest.raises(LeaseLost):
        stand.run(late)
    row = copies.replica(blob)
    ended = EndedTask(
        id=task,
        kind="replica.copy",
        queue="replica",
        tenant_id="acme",
        payload=CopyReplica(replica_id=row.id, blob_id=blob),
        attempt=3,
        error_code="channel_unavailable",
        error_detail=None,
    )
    stand.db.run_session(lambda session: ReplicaHooks().on_end(session, ended, "failed"))
    row = copies.replica(blob)
    assert (row.state, row.error_code, row.tries) == ("completed", None, 0)
    assert stand.state(task) == "completed"


def test_switched_off_nothing_is_planned(stand: Stand) -> None:
    stand.upload = dataclasses.replace(
        stand.upload,
        catalogue=dataclasses.replace(stand.catalogue, switched_off=frozenset({"replica"})),
    )
    copies = Copies(stand)
    copies.store("x", CONTENT)
    assert copies.replicas() == []
    assert stand.waiting("replica") == []


def test_a_read_goes_on_at_the_replica(copies: Copies, stand: Stand) -> None:
    copies.store("x", CONTENT)
    stand.work_all("replica")

    def sources() -> tuple[Source, ...]:
        def read(session: Session) -> tuple[Source, ...]:
            bucket = session.get_one(Bucket, copies.bucket)
            return open_version(session, bucket, "x").sources

        return stand.look(read)

    assert [one.channel for one in sources()] == ["a", "b"]

    def place(source: Source) -> Place:
        found = stand.channels.find(str(source.channel))
        assert found is not None
        return Place(lambda: Door(found[0].channel), source.key)

    for broken in (ChannelUnavailable("down"), ObjectMissing("no such object")):
        stand.channels.faulty["a"].fail_always(broken, "get")
        reader = ContentReader([place(one) for one in sources()], start=0, length=len(CONTENT))
        assert reader.read() == CONTENT
        stand.channels.faulty["a"].heal()


def test_a_copy_that_came_to_the_channel_and_was_lost_meanwhile_does_not_count(
    copies: Copies, stand: Stand
) -> None:
    """Another bucket's copy stood there for a moment: ours is the only good one at its commit."""
    blob = copies.store("x", CONTENT)
    (task,) = stand.waiting("replica")
    execution = stand.claim(task)
    gate = stand.channels.faulty["b"].hold("put")
    worker = Thread(lambda: stand.run(execution))
    assert gate.reached.wait(10)

    def come_and_go(session: Session) -> str:
        location = Location(
            blob_id=blob,
            channel="b",
            key="default/other",
            state=LocationState.STORED,
            task_id=1,
            fence=1,
            attempt=0,
            created_at=utc_clock(),
            stored_at=utc_clock(),
        )
        session.add(location)
        session.flush()
        return report_loss(
            session, stand.catalogue, location.id, found_by=FoundBy.AUDIT, detail="missing"
        )

    assert stand.db.run_session(come_and_go) == "repair"
    gate.release()
    assert worker.join_answer() == "completed"
    assert sorted(copies.places(blob)["b"]) == ["condemned", "stored"]
    assert copies.content(blob, "b") == CONTENT
    assert copies.replica(blob).location_id == copies.stored(blob, "b").id


def test_an_unwanted_copy_goes_when_two_looks_agree_and_not_after_one(
    copies: Copies, stand: Stand
) -> None:
    blob = copies.store("x", CONTENT)
    assert stand.work_all("replica") == ["completed"]
    copies.rules()
    place = copies.stored(blob, "b").id

    def report(found_by: FoundBy) -> str:
        return stand.db.run_session(
            lambda session: report_loss(
                session, stand.catalogue, place, found_by=found_by, detail="missing"
            )
        )

    assert report(FoundBy.READ) == "waits"
    assert copies.places(blob) == {"a": ["stored"], "b": ["stored"]}
    assert report(FoundBy.AUDIT) == "dropped"
    assert copies.places(blob) == {"a": ["stored"], "b": ["condemned"]}
