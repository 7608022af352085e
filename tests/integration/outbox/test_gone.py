"""The comparison with Redis is exact: gone is what was missing twice, and an error is no answer."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

from shared.outbox.filler import Filler
from shared.outbox.gone import Gone
from shared.outbox.signals import Redelivered
from tests.servers.redis import RedisServer
from tests.support.eventually import eventually, never
from tests.support.filling import (
    QUEUE,
    TELLING,
    add,
    clock,
    consume,
    in_state,
    listed,
    read_lanes,
    states,
)
from tests.support.outbox import Bench


@pytest.fixture
def quick(outbox_url: str, redis_url: str, namespace: str) -> Iterator[Bench]:
    """Missing for a fifth of a second is long enough; pages of three rows."""
    made = Bench(outbox_url, redis_url, namespace=namespace, gone_after_seconds=0.2, scan_page=3)
    yield made
    made.close()


def _gone(bench: Bench) -> Gone:
    return Gone(bench.context, bench.context.db.line())


def _dispatched(bench: Bench, count: int, *, past_seconds: float = 1.0, **values: object):
    lease = clock(bench) - dt.timedelta(seconds=past_seconds)
    ids = add(bench, count, state="dispatched", lease_until=lease, **values)
    for task_id in ids:
        bench.set(task_id, dispatch_id=f"d{task_id}")
    return ids


def _push(bench: Bench, ids: list[int], name: str = QUEUE) -> None:
    bench.context.scripts.push(name, [(task_id, f"d{task_id}") for task_id in ids])


def test_missing_twice_is_gone(quick: Bench) -> None:
    quick.context.kinds.register(TELLING)
    (lost,) = _dispatched(quick, 1, kind=TELLING.name, tenant_id="acme")
    (there,) = _dispatched(quick, 1)
    (young,) = _dispatched(quick, 1, past_seconds=-60)
    _push(quick, [there])
    gone = _gone(quick)

    assert gone.run_once() == 0
    eventually(lambda: gone.run_once() == 1)

    row = quick.columns(lost)
    assert (row["state"], row["dispatch_id"], row["lease_until"]) == ("pending", None, None)
    assert row["due_at"] > row["order_at"]
    assert quick.event_types(lost) == ["pending"]
    assert list(read_lanes(quick)) == [(QUEUE, "", "acme", 1)]
    assert quick.read(there).state == quick.read(young).state == "dispatched"
    assert quick.seen(Redelivered) == [Redelivered("message_gone", 1)]
    never(gone.run_once, 0.5)


def test_two_scans_close_together_conclude_nothing(bench: Bench) -> None:
    _dispatched(bench, 2)
    gone = _gone(bench)
    for _ in range(5):
        assert gone.run_once() == 0
    assert states(bench) == {"dispatched": 2}


def test_what_was_missing_once_and_is_there_again_is_not_gone(quick: Bench) -> None:
    ids = _dispatched(quick, 2)
    gone = _gone(quick)
    gone.run_once()
    _push(quick, ids)
    never(gone.run_once, 0.4)
    quick.context.scripts.fetch(QUEUE, 10)
    # Counted from the first time it was missing after it had been there.
    assert gone.run_once() == 0
    eventually(lambda: gone.run_once() == 2)


def test_every_row_of_a_flushed_redis_comes_back_in_pages(quick: Bench) -> None:
    consume(quick, threads=10)
    ids = add(quick, 20)
    filler = Filler(quick.context)
    filler.run_once()
    assert len(listed(quick)) == 20
    # All of one page were marked in one moment; it lies in the past now.
    past = clock(quick) - dt.timedelta(seconds=1)
    for task_id in ids:
        quick.set(task_id, lease_until=past)
    quick.context.redis.delete(
        quick.context.scripts.list_key(QUEUE), quick.context.scripts.messages_key(QUEUE)
    )
    gone = _gone(quick)
    gone.run_once()
    eventually(lambda: (gone.run_once(), in_state(quick, "pending") == ids)[1])
    eventually(lambda: (filler.run_once(), len(listed(quick)) == 20)[1])
    # Under new dispatch ids: a message that turns up after all is stale.
    assert len({quick.read(task_id).dispatch_id for task_id in ids}) == 20
    filler.close()


def test_rows_that_wait_in_redis_do_not_hide_those_behind(quick: Bench) -> None:
    waiting = _dispatched(quick, 10, past_seconds=50)
    _push(quick, waiting)
    (lost,) = _dispatched(quick, 1)
    gone = _gone(quick)
    gone.run_once()
    eventually(lambda: gone.run_once() == 1)
    assert in_state(quick, "pending") == [lost]


def test_an_error_of_redis_is_unknown_and_never_gone(
    outbox_url: str, private_redis: RedisServer, namespace: str
) -> None:
    bench = Bench(outbox_url, private_redis.url, namespace=namespace, gone_after_seconds=0.1)
    ids = _dispatched(bench, 3)
    _push(bench, ids)
    gone = _gone(bench)
    gone.run_once()
    private_redis.stop()
    never(gone.run_once, 0.5)
    assert states(bench) == {"dispatched": 3}

    # What comes back is an empty server: now they are really gone, once it has said so twice.
    private_redis.start()
    assert gone.run_once() == 0
    eventually(lambda: gone.run_once() == 3)
    bench.close()


def test_a_worker_that_claims_between_look_and_update_wins(quick: Bench) -> None:
    (task_id,) = _dispatched(quick, 1)
    gone = _gone(quick)
    gone.run_once()
    quick.run(task_id)
    never(gone.run_once, 0.4)
    assert quick.read(task_id).state == "running"


def test_a_row_dispatched_anew_is_judged_anew(quick: Bench) -> None:
    (task_id,) = _dispatched(quick, 1)
    gone = _gone(quick)
    gone.run_once()
    quick.set(task_id, dispatch_id="fresh")
    assert gone.run_once() == 0
    assert quick.read(task_id).state == "dispatched"


def test_regions_are_looked_up_in_their_own_lists(quick: Bench) -> None:
    base = _dispatched(quick, 1)
    eu = _dispatched(quick, 1, region="eu")
    _push(quick, base)
    _push(quick, eu, "mail.eu")
    gone = _gone(quick)
    never(gone.run_once, 0.4)


def test_messages_whose_list_was_deleted_are_gone(quick: Bench) -> None:
    """Nobody would ever fetch them, and they would stay in Redis for good."""
    ids = _dispatched(quick, 2)
    _push(quick, ids)
    client, scripts = quick.context.redis, quick.context.scripts
    client.delete(scripts.list_key(QUEUE))
    gone = _gone(quick)
    assert gone.run_once() == 0
    eventually(lambda: gone.run_once() == 2)
    assert states(quick) == {"pending": 2}
    assert client.hlen(scripts.messages_key(QUEUE)) == 0


def test_a_fetch_of_any_size_takes_messages_whole(bench: Bench) -> None:
    scripts = bench.context.scripts
    scripts.push(QUEUE, [(number, f"{number:032x}") for number in range(9000)])
    fetched = [len(scripts.fetch(QUEUE, 8500)) for _ in range(9)]
    assert fetched == [1000] * 9
    assert bench.context.redis.hlen(scripts.messages_key(QUEUE)) == 0
    assert bench.context.redis.llen(scripts.bell_key(QUEUE)) == 0


@pytest.mark.databases("mariadb")
def test_a_row_that_is_locked_for_long_does_not_keep_the_others_of_its_page(quick: Bench) -> None:
    locked, *others = _dispatched(quick, 3)
    gone = _gone(quick)
    gone.run_once()
    with quick.locked(locked):
        eventually(lambda: gone.run_once() == 2)
        assert in_state(quick, "pending") == others
    # It is old, and must not be forgotten until the next full scan.
    eventually(lambda: gone.run_once() == 1, 5)
    assert states(quick) == {"pending": 3}
