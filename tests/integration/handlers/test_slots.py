"""Channels with a limit: uploads hold a place, or are parked until one is free.

Open breakers park as well, and neither burns an attempt.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.catalog import sending
from shared.catalog.channel_slots import resource_of, slots_in_use
from shared.catalog.models import Location, LocationState, utc_clock
from shared.coordination.slots import RedisSlots, reservation
from shared.core.errors import ResourceBusy
from shared.core.outcomes import Snooze
from shared.outbox.parked_scan import ParkedScan
from shared.storage.errors import ChannelUnavailable
from tests.support.handlers import PART_BYTES, Stand

SMALL = b"hello, slots"


@pytest.fixture
def slots(redis_url: str, namespace: str) -> Iterator[RedisSlots]:
    made = RedisSlots(redis_url, namespace)
    right = made.begin_rebuild()
    assert right is not None
    assert made.enter(right, [])
    yield made
    made.close()


@pytest.fixture
def stand(blox_url: str, tmp_path: Path, slots: RedisSlots) -> Iterator[Stand]:
    """A worker whose channels take one execution at a time."""
    made = Stand(blox_url, tmp_path, places=slots)
    for name in ("a", "b"):
        made.channels.limit(name, 1)
    yield made
    made.close()


def _occupy(slots: RedisSlots, *channels: str) -> None:
    for channel in channels:
        outcome, _ = slots.acquire(f"channel:{channel}", "another", limit=1, task_id=0)
        assert outcome == "held"


def _release(slots: RedisSlots, channel: str) -> None:
    slots.release(f"channel:{channel}", "another")


def _stands_on(stand: Stand, blob_id: int, channel: str) -> None:
    """Let a blob stand on one more channel."""
    (first,) = stand.locations(blob_id)
    row = Location(
        blob_id=blob_id,
        channel=channel,
        key="default/second",
        state=LocationState.STORED,
        task_id=first.task_id,
        fence=first.fence,
        attempt=0,
        created_at=utc_clock(),
        stored_at=utc_clock(),
    )
    stand.db.run_session(lambda session: session.add(row))


def _break(stand: Stand, name: str, *, is_open: bool = True) -> None:
    found = stand.channels.find(name)
    assert found is not None
    for _ in range(3):
        if is_open:
            found[0].breaker.failed()
        else:
            found[0].breaker.succeeded()


def test_upload_holds_a_place_until_after_its_commit(
    stand: Stand, slots: RedisSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.upload import trying

    seen: dict[str, int | None] = {}

    def look(name: str) -> None:
        seen[name] = slots.in_use("channel:a")

    monkeypatch.setattr(trying, "failpoint", look)
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    assert stand.work(put.task_id) == "completed"
    assert (seen["upload.after_checkpoint"], seen["upload.after_commit"]) == (1, 1)
    assert slots.in_use("channel:a") == 0
    assert stand.task(put.task_id)["slots"] is None


def test_full_channel_is_passed_over_for_the_next(stand: Stand, slots: RedisSlots) -> None:
    _occupy(slots, "a")
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    assert stand.work(put.task_id) == "completed"
    assert [one.channel for one in stand.locations()] == ["b"]
    assert slots.in_use("channel:b") == 0


def test_all_full_parks_on_the_first_before_the_intent(stand: Stand, slots: RedisSlots) -> None:
    _occupy(slots, "a", "b")
    put = stand.put(stand.bucket(channels=["b", "a"]), "a.txt", SMALL)
    assert stand.work(put.task_id) == "blocked"
    task = stand.task(put.task_id)
    assert (task["resource_key"], task["attempt"]) == ("channel:b", 0)
    assert stand.locations() == []
    assert stand.event_types(put.task_id)[-1] == "parked"

    _release(slots, "b")
    scan = ParkedScan(stand.bench.context, stand.bench.context.db.line())
    assert scan.run_once() == 1
    assert stand.task(put.task_id)["slots"] == {"channel:b": reservation(put.task_id or 0)}
    assert stand.work(put.task_id) == "completed"
    assert [one.channel for one in stand.locations()] == ["b"]


def test_end_of_one_upload_wakes_the_next(stand: Stand, slots: RedisSlots) -> None:
    bucket = stand.bucket(channels=["a"])
    first, second = (stand.put(bucket, key, key.encode()) for key in ("first", "second"))
    _occupy(slots, "a")
    assert stand.work(second.task_id) == "blocked"
    _release(slots, "a")
    assert stand.work(first.task_id) == "completed"
    assert stand.state(second.task_id) == "pending"
    assert stand.work(second.task_id) == "completed"


def test_deletion_takes_a_place_and_waits_for_one_after_what_it_can_do(
    stand: Stand, slots: RedisSlots
) -> None:
    bucket = stand.bucket(channels=["a"])
    put = stand.put(bucket, "a.txt", SMALL)
    assert stand.work(put.task_id) == "completed"
    blob_id = stand.version(put.version_id).blob_id
    assert blob_id is not None
    _stands_on(stand, blob_id, "b")
    stand.remove(bucket, "a.txt")
    (task_id,) = stand.waiting("delete")
    _occupy(slots, "a")
    assert stand.work(task_id) == "blocked"
    row = stand.task(task_id)
    assert (row["resource_key"], row["attempt"]) == ("channel:a", 0)
    assert {one.channel: (one.state, one.tries) for one in stand.locations(blob_id)} == {
        "a": ("stored", 0),
        "b": ("tombstone", 0),
    }
    _release(slots, "a")
    assert ParkedScan(stand.bench.context, stand.bench.context.db.line()).run_once() == 1
    assert stand.work(task_id) == "completed"
    assert (slots.in_use("channel:a"), slots.in_use("channel:b")) == (0, 0)
    assert stand.blob(blob_id).state == "deleted"


def test_open_breakers_park_until_one_may_be_asked(stand: Stand, slots: RedisSlots) -> None:
    bucket = stand.bucket()
    put, other = stand.put(bucket, "a.txt", SMALL), stand.put(bucket, "b.txt", b"other")
    _break(stand, "a")
    _break(stand, "b")
    for task_id in (put.task_id, other.task_id):
        assert stand.work(task_id) == "blocked"
        task = stand.task(task_id)
        assert (task["attempt"], task["resource_key"]) == (0, "channel:a")
        wait = (task["due_at"] - stand.bench.read(task_id or 0).now).total_seconds()
        assert 25 < wait <= 31.5
    scan = ParkedScan(stand.bench.context, stand.bench.context.db.line())
    assert scan.run_once() == 0
    assert stand.locations() == []

    # The first success on the channel wakes those that wait for its breaker.
    _break(stand, "a", is_open=False)
    third = stand.put(bucket, "c.txt", b"third")
    assert stand.work(third.task_id) == "completed"
    states = [stand.state(task_id) for task_id in (put.task_id, other.task_id)]
    assert states == ["pending", "blocked"]
    assert stand.work(put.task_id) == "completed"
    assert stand.work(other.task_id) == "completed"


def test_unlimited_broken_channel_wakes_some_with_each_success(stand: Stand) -> None:
    stand.channels.limit("a", 0)
    bucket = stand.bucket(channels=["a"])
    puts = [stand.put(bucket, f"{n}", f"content {n}".encode()) for n in range(5)]
    _break(stand, "a")
    for put in puts:
        assert stand.work(put.task_id) == "blocked"
    _break(stand, "a", is_open=False)
    states = []
    assert stand.work(puts[4].task_id) == "completed"
    for put in puts[:4]:
        states.append([stand.state(one.task_id) for one in puts[:4]].count("pending"))
        assert stand.work(put.task_id) == "completed"
    assert states == [2, 3, 2, 1]


def test_failing_channel_burns_its_tries_and_then_nothing(stand: Stand) -> None:
    """Three failures open the breaker; from then on no attempt is counted."""
    bucket = stand.bucket(channels=["a"])
    puts = [stand.put(bucket, f"{n}", f"content {n}".encode()) for n in range(4)]
    stand.channels.faulty["a"].fail_always(ChannelUnavailable("down"))
    states = [stand.work(put.task_id) for put in puts]
    assert states == ["scheduled", "scheduled", "blocked", "blocked"]
    assert [stand.task(put.task_id)["attempt"] for put in puts] == [1, 1, 0, 0]
    assert stand.channels.faulty["a"].calls["put"] == 3


def test_cut_short_upload_waits_for_the_place_of_its_channel(
    stand: Stand, slots: RedisSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has sent is gone on with, although another channel has a place."""
    put = stand.put(stand.bucket(), "big", os.urandom(4 * PART_BYTES))
    execution = stand.claim(put.task_id)
    reached: list[str] = []

    def lose_after_two(name: str) -> None:
        reached.append(name)
        if reached.count("upload.after_part") == 2:
            slots.release("channel:a", execution.slots["channel:a"])
            stand.bench.heartbeat.renew([execution])

    monkeypatch.setattr(sending, "failpoint", lose_after_two)
    assert stand.run(execution) == "pending"
    parts = stand.task(put.task_id)["checkpoint"]["current"]["progress"]["parts_done"]
    assert parts == 2
    _occupy(slots, "a")
    assert stand.work(put.task_id) == "blocked"
    assert stand.task(put.task_id)["resource_key"] == "channel:a"
    _release(slots, "a")
    assert stand.work(put.task_id) == "completed"
    assert stand.task(put.task_id)["result"]["parts_kept"] == parts
    assert stand.task(put.task_id)["attempt"] == 1


def test_breaker_that_opens_in_the_block_parks(stand: Stand) -> None:
    put = stand.put(stand.bucket(), "a.txt", SMALL)
    execution = stand.claim(put.task_id)
    found = stand.channels.find("a")
    assert found is not None
    _break(stand, "a")
    error = ChannelUnavailable("down")

    def use() -> None:
        _break(stand, "a", is_open=False)
        with stand.slots.hold(execution, found[0]):
            for _ in range(4):
                with contextlib.suppress(ChannelUnavailable), found[0].breaker.watch():
                    raise error

    with pytest.raises(ResourceBusy) as caught:
        use()
    assert caught.value.resource == "channel:a"
    assert 25 < caught.value.after_seconds <= 31.5


def test_places_in_use_are_told_of_channels_with_a_limit(stand: Stand, slots: RedisSlots) -> None:
    stand.channels.limit("b", 0)
    _occupy(slots, "a")
    assert slots_in_use(stand.channels, slots) == {"channel:a": 1}
    assert slots_in_use(stand.channels, None) == {}


def test_block_that_asks_the_breaker_itself_is_let_in_and_wakes_later(
    stand: Stand, slots: RedisSlots
) -> None:
    stand.channels.limit("a", 0)
    found = stand.channels.find("a")
    bucket = stand.bucket(channels=["a"])
    waiting, other = stand.put(bucket, "a.txt", SMALL), stand.put(bucket, "b.txt", b"other")
    _break(stand, "a")
    execution = stand.claim(waiting.task_id)
    with stand.slots.hold(execution, found, even_broken=True):
        pass
    answer = Snooze(600.0, "left alone", resource=resource_of("a"))
    stand.bench.answers.settle(execution, answer)
    _break(stand, "a", is_open=False)
    assert stand.work(other.task_id) == "completed"
    assert stand.state(waiting.task_id) == "pending"
    with stand.slots.hold(stand.claim(waiting.task_id), None):
        assert slots.in_use("channel:a") == 0


def test_overwrite_ends_a_parked_upload_and_its_place_goes_to_the_next(
    stand: Stand, slots: RedisSlots
) -> None:
    bucket = stand.bucket(channels=["a"])
    older, next_one = stand.put(bucket, "a.txt", SMALL), stand.put(bucket, "b.txt", b"other")
    _occupy(slots, "a")
    assert [stand.work(put.task_id) for put in (older, next_one)] == ["blocked", "blocked"]
    _release(slots, "a")
    ParkedScan(stand.bench.context, stand.bench.context.db.line()).run_once()
    assert stand.state(older.task_id) == "pending"
    newer = stand.put(bucket, "a.txt", b"newer")
    task = stand.task(older.task_id)
    assert (task["state"], task["error_code"], task["slots"]) == ("cancelled", "superseded", None)
    assert stand.task(next_one.task_id)["slots"] == {
        "channel:a": reservation(next_one.task_id or 0)
    }
    assert [stand.work(put.task_id) for put in (next_one, newer)] == ["completed", "completed"]
