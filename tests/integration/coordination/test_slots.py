"""Slots on a real Redis: never more holders than places, and nothing known without an epoch."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from shared.coordination.slots import RedisSlots, reservation
from shared.core.errors import UnavailableError
from shared.core.ids import new_id
from tests.servers.redis import RedisServer
from tests.support.eventually import eventually

NAME = "channel:a"


@pytest.fixture
def slots(redis_url: str, namespace: str) -> Iterator[RedisSlots]:
    made = RedisSlots(redis_url, namespace)
    begin_epoch(made)
    yield made
    made.close()


@pytest.fixture
def short(redis_url: str, namespace: str) -> Iterator[RedisSlots]:
    """Tokens of 0.4 s, reservations of 0.2 s."""
    made = RedisSlots(redis_url, namespace, slot_seconds=0.4, reserved_seconds=0.2)
    begin_epoch(made)
    yield made
    made.close()


def begin_epoch(slots: RedisSlots, tokens: list[tuple[str, str]] | None = None) -> None:
    right = slots.begin_rebuild()
    assert right is not None
    assert slots.enter(right, tokens or [])


def take(slots: RedisSlots, token: str, *, limit: int = 2, task_id: int = 1) -> str:
    return slots.acquire(NAME, token, limit=limit, task_id=task_id)[0]


def test_no_more_holders_than_places(slots: RedisSlots) -> None:
    assert [take(slots, token) for token in ("x", "y", "z")] == ["held", "held", "full"]
    assert slots.in_use(NAME) == 2
    slots.release(NAME, "x")
    slots.release(NAME, "x")
    slots.release(NAME, "never held")
    assert [take(slots, token) for token in ("z", "w")] == ["held", "full"]


def test_another_name_has_its_own_places(slots: RedisSlots) -> None:
    assert take(slots, "x", limit=1) == "held"
    assert slots.acquire("channel:b", "x", limit=1, task_id=1)[0] == "held"


def test_many_threads_never_exceed_the_limit(slots: RedisSlots) -> None:
    held: list[str] = []

    def try_often() -> None:
        for _ in range(25):
            token = new_id()
            if take(slots, token, limit=3) == "held":
                held.append(token)

    threads = [threading.Thread(target=try_often) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 3


def test_expired_token_frees_its_place_and_is_never_renewed_back(short: RedisSlots) -> None:
    assert take(short, "x", limit=1) == "held"
    eventually(lambda: take(short, "y", limit=1) == "held" or keep_epoch(short))
    assert short.renew([(NAME, "x")]) == {(NAME, "x")}
    assert short.renew([(NAME, "y")]) == set()


def keep_epoch(slots: RedisSlots) -> None:
    slots.acquire("another", new_id(), limit=1000, task_id=9)


def test_renewals_keep_a_token(short: RedisSlots) -> None:
    assert take(short, "x", limit=1) == "held"
    first = threading.Event()
    for _ in range(8):
        first.wait(0.1)
        assert short.renew([(NAME, "x")]) == set()
    assert take(short, "y", limit=1) == "full"


def test_key_lives_as_long_as_its_latest_lease(
    slots: RedisSlots, redis_server: RedisServer
) -> None:
    take(slots, "x")
    with redis_server.client() as client:
        left = client.pttl(slots._key(NAME))
    assert 55_000 < left <= 60_000


# -- the epoch -----------------------------------------------------------------------------------


def test_without_an_epoch_nobody_is_let_in_and_nothing_is_lost(
    slots: RedisSlots, redis_server: RedisServer
) -> None:
    assert take(slots, "x") == "held"
    with redis_server.client() as client:
        client.delete(slots._epoch_key, slots._key(NAME))
    assert take(slots, "y") == "no_epoch"
    assert slots.renew([(NAME, "x")]) is None
    assert slots.in_use(NAME) is None
    assert slots.reserve(NAME, 7, limit=2) == "no_epoch"
    begin_epoch(slots, [(NAME, "x")])
    assert slots.renew([(NAME, "x"), (NAME, "y")]) == {(NAME, "y")}
    assert take(slots, "y", limit=1) == "full"


def test_confirm_tells_whether_the_epoch_of_the_acquire_still_is(slots: RedisSlots) -> None:
    outcome, epoch = slots.acquire(NAME, "x", limit=1, task_id=1)
    assert outcome == "held"
    assert slots.confirm(NAME, "x", epoch=epoch)
    assert not slots.confirm(NAME, "x", epoch="another")
    assert slots.in_use(NAME) == 0
    assert not slots.confirm(NAME, "x", epoch=epoch)


def test_another_run_of_the_server_has_no_epoch(private_redis: RedisServer, namespace: str) -> None:
    slots = RedisSlots(private_redis.url, namespace)
    begin_epoch(slots)
    assert take(slots, "x") == "held"
    with private_redis.client() as client:
        saved = {
            slots._epoch_key: client.dump(slots._epoch_key),
            slots._key(NAME): client.zrange(slots._key(NAME), 0, -1, withscores=True),
        }
        value = client.get(slots._epoch_key)
    assert saved
    private_redis.restart()
    # A snapshot brings back the very keys, and it is another server all the same.
    with private_redis.client() as client:
        client.set(slots._epoch_key, str(value))
        client.zadd(slots._key(NAME), dict(saved[slots._key(NAME)]))
    assert take(slots, "y") == "no_epoch"
    assert slots.renew([(NAME, "x")]) is None
    slots.close()


def test_epoch_lapses_before_a_token_that_nobody_could_renew(short: RedisSlots) -> None:
    assert take(short, "x", limit=1) == "held"
    assert short.renew([(NAME, "x")]) == set()
    eventually(lambda: short.in_use(NAME) is None, interval_seconds=0.02)
    # The token has half of its time left: a rebuild finds it, or enters it anew.
    begin_epoch(short, [(NAME, "x")])
    assert short.renew([(NAME, "x")]) == set()


def test_one_rebuilder_and_only_while_its_right_holds(
    slots: RedisSlots, redis_server: RedisServer
) -> None:
    with redis_server.client() as client:
        client.delete(slots._epoch_key)
        right = slots.begin_rebuild()
        assert right is not None
        assert slots.begin_rebuild() is None
        # Paused past its lock: another took it.
        client.delete(slots._lock_key)
        other = slots.begin_rebuild()
        assert other is not None
        assert not slots.enter(right, [(NAME, "x")])
        assert slots.enter(other, [(NAME, "y")])
    late = slots.begin_rebuild()
    assert late is not None
    assert not slots.enter(late, [(NAME, "x")])
    assert slots.renew([(NAME, "x"), (NAME, "y")]) == {(NAME, "x")}


@pytest.mark.parametrize("left_milliseconds", [None, 3_600_000])
def test_a_right_that_nobody_can_have_taken_is_nobodys(
    slots: RedisSlots, redis_server: RedisServer, left_milliseconds: int | None
) -> None:
    # What Redis holds after it was set back to a copy without times to live, or its clock was.
    with redis_server.client() as client:
        client.delete(slots._epoch_key)
        client.set(slots._lock_key, "a-dead-process", px=left_milliseconds)
    begin_epoch(slots)
    assert take(slots, "x") == "held"


# -- reservations --------------------------------------------------------------------------------


def test_place_handed_over_is_for_one_task_alone(slots: RedisSlots) -> None:
    assert take(slots, "x", limit=1) == "held"
    assert slots.hand_over(NAME, "x", 7, limit=1) == "reserved"
    assert take(slots, "y", limit=1, task_id=8) == "full"
    assert take(slots, "z", limit=1, task_id=7) == "held"
    assert slots.in_use(NAME) == 1
    assert slots.hand_over(NAME, "x", 9, limit=1) == "gone"


def test_reservation_is_given_on_and_expires(short: RedisSlots) -> None:
    assert short.reserve(NAME, 7, limit=1) == "reserved"
    assert short.reserve(NAME, 7, limit=1) == "taken"
    assert short.reserve(NAME, 8, limit=1) == "full"
    assert short.hand_over(NAME, reservation(7), 8, limit=1) == "reserved"
    assert take(short, "x", limit=1, task_id=7) == "full"
    eventually(lambda: take(short, "x", limit=1, task_id=7) == "held" or keep_epoch(short))


def test_hand_over_to_a_task_that_has_a_place_keeps_the_token(slots: RedisSlots) -> None:
    assert slots.reserve(NAME, 7, limit=2) == "reserved"
    assert take(slots, "x") == "held"
    assert slots.hand_over(NAME, "x", 7, limit=2) == "taken"
    assert slots.renew([(NAME, "x")]) == set()


def test_place_above_a_lowered_limit_is_not_given_on(slots: RedisSlots) -> None:
    assert [take(slots, token) for token in ("x", "y")] == ["held", "held"]
    assert slots.hand_over(NAME, "x", 7, limit=1) == "gone"
    assert slots.hand_over(NAME, "y", 7, limit=1) == "reserved"


def test_without_redis_there_is_no_slot(private_redis: RedisServer, namespace: str) -> None:
    slots = RedisSlots(private_redis.url, namespace, command_seconds=0.5)
    begin_epoch(slots)
    private_redis.stop()
    for ask in (
        lambda: take(slots, "x"),
        lambda: slots.renew([(NAME, "x")]),
        lambda: slots.release(NAME, "x"),
        lambda: slots.in_use(NAME),
        slots.begin_rebuild,
    ):
        with pytest.raises(UnavailableError):
            ask()
    slots.close()
