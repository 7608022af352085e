"""Pending rows go into the window: as many as fit, in the order of fairness, none twice."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from shared.outbox.filler import Filler
from shared.outbox.lanes import lower_lanes
from shared.outbox.messages import decode
from shared.outbox.schema import tasks
from shared.outbox.signals import DispatchFailed, WindowMeasured
from shared.outbox.window import Place
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
    update_lanes,
)
from tests.support.outbox import Bench

PLACE = Place(QUEUE, "")


@pytest.fixture
def filler(bench: Bench) -> Iterator[Filler]:
    made = Filler(bench.context)
    yield made
    made.close()


def _tenants(bench: Bench) -> list[str]:
    """Return the tenants of what is in the list, in its order."""
    by_dispatch = {}
    with bench.engine.connect().execution_options(read_only=True) as connection:
        for row in connection.execute(sa.select(tasks.c.dispatch_id, tasks.c.tenant_id)):
            by_dispatch[row[0]] = row[1]
    return [by_dispatch[dispatch_id] for dispatch_id in listed(bench)]


def _take_off(bench: Bench, count: int) -> None:
    """Do what a worker does: fetch so many messages and claim their rows."""
    for body in bench.context.scripts.fetch(QUEUE, count):
        bench.set(int(decode(body).kwargs["task_id"]), state="running")


def test_a_pending_row_becomes_a_message_with_its_dispatch_id(bench: Bench, filler: Filler) -> None:
    (task_id,) = add(bench)
    consume(bench)

    assert filler.run_once() == 1

    row = bench.read(task_id)
    assert row.state == "dispatched"
    assert row.dispatch_id is not None
    assert len(row.dispatch_id) == 32
    assert listed(bench) == [row.dispatch_id]
    (body,) = bench.context.scripts.fetch(QUEUE, 10)
    message = decode(body)
    assert message.kwargs == {"task_id": task_id, "dispatch_id": row.dispatch_id}
    assert message.message_id == row.dispatch_id
    # The mark gives the scan a moment from which on to look for the message.
    lease = bench.columns(task_id)["lease_until"]
    assert 0 < (lease - row.now).total_seconds() <= 5


def test_the_window_bounds_what_is_in_redis_and_is_filled_again(
    bench: Bench, filler: Filler
) -> None:
    add(bench, 50)
    consume(bench, threads=2)

    filler.run_once()
    assert states(bench) == {"dispatched": 8, "pending": 42}
    assert filler.run_once() == 0

    _take_off(bench, 5)
    assert filler.run_once() == 5
    assert len(listed(bench)) == 8
    measured = bench.seen(WindowMeasured)[-1]
    assert (measured.queue, measured.size) == (QUEUE, 8)


def test_rows_that_redis_has_lost_still_fill_the_window(bench: Bench, filler: Filler) -> None:
    add(bench, 50)
    consume(bench, threads=2)
    filler.run_once()

    bench.context.redis.delete(
        bench.context.scripts.list_key(QUEUE), bench.context.scripts.messages_key(QUEUE)
    )

    assert filler.run_once() == 0


def test_nothing_is_dispatched_where_nobody_consumes(bench: Bench, filler: Filler) -> None:
    add(bench, 3)
    consume(bench, queues=["other"])
    assert filler.run_once() == 0
    assert states(bench) == {"pending": 3}


def test_a_region_has_a_list_and_a_window_of_its_own(bench: Bench, filler: Filler) -> None:
    add(bench, 10, region="eu")
    add(bench, 10)
    consume(bench, threads=2, queues=["mail.eu"])

    filler.run_once()

    assert len(listed(bench, "mail.eu")) == 8
    assert listed(bench) == []


def test_the_urgent_come_first_then_the_older(bench: Bench, filler: Filler) -> None:
    late = add(bench, 2, priority=1)
    old = add(bench, 1, priority=1, age_seconds=60)
    urgent = add(bench, 1, priority=0)
    consume(bench, threads=1)

    filler.run_once()

    order = [bench.read(task_id).dispatch_id for task_id in (*urgent, *old, *late)]
    assert listed(bench) == order


def test_tenants_take_turns_and_a_weight_counts(bench: Bench, filler: Filler) -> None:
    add(bench, 100, tenant_id="big")
    add(bench, 100, tenant_id="heavy")
    add(bench, 3, tenant_id="small")
    consume(bench, threads=1)
    filler.run_once()
    assert Counter(_tenants(bench)) == {"big": 2, "heavy": 1, "small": 1}

    update_lanes(bench, weight=1)
    with bench.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lanes SET weight = 3 WHERE tenant_id = 'heavy'")
    brought: Counter[str] = Counter()
    for _ in range(10):
        _take_off(bench, 4)
        before = len(listed(bench))
        filler.run_once()
        brought.update(_tenants(bench)[before:])
    assert brought["heavy"] == pytest.approx(3 * brought["big"], rel=0.25)


def test_a_small_tenant_waits_for_no_more_than_a_window_and_the_others_turns(
    bench: Bench, filler: Filler
) -> None:
    add(bench, 200, tenant_id="big")
    consume(bench, threads=2)
    filler.run_once()
    (task_id,) = add(bench, tenant_id="small")
    # The net of a minute finds the new lane too; here it is there at once, as after an enqueue.
    lower_lanes(bench.context.db, [((QUEUE, "", "small", 1), bench.read(task_id).order_at)])

    _take_off(bench, 8)
    filler.run_once()

    assert bench.read(task_id).state == "dispatched"


def test_a_tenant_whose_turn_comes_twice_in_a_page_brings_no_row_twice(
    bench: Bench, filler: Filler
) -> None:
    # All of one moment: what a page has taken already looks like what it could take next.
    moment = clock(bench)
    add(bench, 30, order_at=moment)
    add(bench, 1, order_at=moment, tenant_id="other")
    add(bench, 1, order_at=moment, tenant_id="third")
    consume(bench, threads=5)

    assert filler.run_once() == 20

    assert len(set(listed(bench))) == len(listed(bench)) == 20
    assert states(bench) == {"dispatched": 20, "pending": 12}


@pytest.mark.databases("mariadb")
def test_a_locked_row_at_the_head_does_not_hold_up_those_behind(
    bench: Bench, filler: Filler
) -> None:
    ids = add(bench, 3)
    consume(bench)
    with bench.locked(ids[0]):
        filler.run_once()
        assert in_state(bench, "dispatched") == ids[1:]
    # It is older than those: found by the next look back, a second later.
    eventually(lambda: filler.run_once() == 1)
    assert states(bench) == {"dispatched": 3}


def test_the_low_mark_stands_while_rows_wait_and_a_fetch_below_it_rings(
    bench: Bench, filler: Filler
) -> None:
    add(bench, 12)
    consume(bench, threads=2)
    scripts, client = bench.context.scripts, bench.context.redis
    client.delete(scripts.fill_bell_key)
    filler.run_once()
    assert client.get(scripts.low_key(QUEUE)) == b"4"
    assert client.llen(scripts.fill_bell_key) == 0

    _take_off(bench, 4)
    assert client.llen(scripts.fill_bell_key) == 0
    _take_off(bench, 1)
    assert client.llen(scripts.fill_bell_key) == 1

    filler.run_once()
    assert states(bench)["dispatched"] == 7
    assert client.get(scripts.low_key(QUEUE)) is None


def test_a_page_that_redis_refuses_is_put_off(bench: Bench, filler: Filler) -> None:
    (task_id,) = add(bench)
    consume(bench)
    # A value of the wrong type is an error before anything is written.
    bench.context.redis.set(bench.context.scripts.messages_key(QUEUE), "no hash")

    assert filler.run_once() == 0

    values = bench.columns(task_id)
    assert (values["state"], values["dispatch_failures"]) == ("scheduled", 1)
    assert values["dispatch_id"] is None
    assert values["due_at"] > values["created_at"]
    assert listed(bench) == []
    assert bench.seen(DispatchFailed) == [DispatchFailed(1, unknown=False)]


def test_one_filler_per_queue_and_the_next_when_it_goes(bench: Bench, other: Bench) -> None:
    first, second = Filler(bench.context), Filler(other.context)
    consume(bench, threads=2)
    add(bench, 10)
    assert first.run_once() == 8
    _take_off(bench, 8)
    bench.context.redis.delete(bench.context.scripts.fill_bell_key)
    assert second.run_once(forward=True) == 0
    # The bell was for the one that holds the lease.
    own_bell = f"{bench.context.scripts.fill_bell_key}:{first._token}"
    assert bench.context.redis.llen(own_bell) == 1
    assert first._listen(bench.context.redis) is False
    first.close()
    assert second.run_once() == 2
    second.close()


@pytest.mark.parametrize("left_millis", [None, 3_600_000])
def test_a_lease_that_no_filler_can_have_taken_is_nobodys(
    bench: Bench, filler: Filler, namespace: str, left_millis: int | None
) -> None:
    # What Redis holds after it was set back to a copy without times to live, or its clock was.
    bench.context.redis.set(f"{namespace}:{QUEUE}.filler", "a-dead-process", px=left_millis)
    consume(bench)
    (task_id,) = add(bench)

    assert filler.run_once() == 1

    assert bench.read(task_id).state == "dispatched"
    assert 0 < bench.context.redis.pttl(f"{namespace}:{QUEUE}.filler") <= 5000


def test_an_older_row_is_seen_when_its_lane_was_lowered(bench: Bench, filler: Filler) -> None:
    add(bench, 2, age_seconds=10)
    consume(bench)
    filler.run_once()
    (old,) = add(bench, age_seconds=3600)
    assert filler.run_once() == 0

    lower_lanes(bench.context.db, [((QUEUE, "", "", 1), bench.read(old).order_at)])

    assert filler.run_once() == 1
    assert bench.read(old).state == "dispatched"


def test_the_full_look_finds_what_nobody_announced(
    outbox_url: str, redis_url: str, namespace: str
) -> None:
    bench = Bench(outbox_url, redis_url, namespace=namespace, full_scan_seconds=0.2)
    filler = Filler(bench.context)
    add(bench, 2, age_seconds=10)
    consume(bench)
    assert filler.run_once() == 2
    (old,) = add(bench, age_seconds=3600)
    (alone,) = add(bench, tenant_id="without a lane")
    eventually(lambda: filler.run_once() and bench.read(old).state == "dispatched")
    eventually(lambda: filler.run_once() or bench.read(alone).state == "dispatched")
    filler.close()
    bench.close()


def test_a_row_whose_announcement_was_lost_is_found_when_it_has_waited_for_seconds(
    outbox_url: str, redis_url: str, namespace: str
) -> None:
    bench = Bench(
        outbox_url, redis_url, namespace=namespace, full_scan_seconds=3600, scan_seconds=0.1
    )
    filler = Filler(bench.context)
    consume(bench)
    filler.run_once()
    # A retry of an old task: whoever made it pending died before lowering or adding its lane.
    (alone,) = add(bench, order_at=clock(bench) - dt.timedelta(hours=1))
    started = clock(bench)

    def fill() -> bool:
        consume(bench)
        filler.run_once()
        return bench.read(alone).state == "dispatched"

    eventually(fill, 15)
    assert (clock(bench) - started).total_seconds() > 4
    filler.close()
    bench.close()


def test_a_row_that_commits_late_is_found_within_seconds(bench: Bench, filler: Filler) -> None:
    consume(bench)
    add(bench, 1)
    assert filler.run_once() == 1
    # As if inserted three seconds ago in a transaction that has committed only now.
    (late,) = add(bench, age_seconds=3)
    eventually(lambda: filler.run_once() == 1)
    assert bench.read(late).state == "dispatched"


def test_watermarks_are_kept_for_the_next_filler(bench: Bench, filler: Filler) -> None:
    add(bench, 3, age_seconds=3600)
    consume(bench)
    filler.run_once()
    (lane,) = read_lanes(bench).values()
    newest = max(row["order_at"] for row in bench._all(tasks, tasks.c.id > 0, tasks.c.id))
    assert lane["watermark"] == newest


def test_every_transition_of_a_telling_kind_is_an_event(bench: Bench, filler: Filler) -> None:
    bench.context.kinds.register(TELLING)
    (telling,) = add(bench, kind=TELLING.name)
    (silent,) = add(bench)
    consume(bench)
    filler.run_once()
    assert bench.event_types(telling) == ["dispatching", "dispatched"]
    assert bench.event_types(silent) == []


def test_the_bell_wakes_the_filler_and_the_stop_ends_it(
    outbox_url: str, redis_url: str, namespace: str
) -> None:
    # Without the bell it would look again only after a minute.
    bench = Bench(outbox_url, redis_url, namespace=namespace, scan_seconds=60, credit_seconds=60)
    consume(bench)
    lease = f"{namespace}:{QUEUE}.filler"
    with _running(Filler(bench.context), bench) as thread:
        eventually(lambda: bench.context.redis.exists(lease))
        (task_id,) = add(bench)
        lower_lanes(bench.context.db, [((QUEUE, "", "", 1), bench.read(task_id).order_at)])
        never(lambda: bench.read(task_id).state == "dispatched", 0.2)

        bench.context.scripts.ring_filler()

        eventually(lambda: bench.read(task_id).state == "dispatched", 5)
    assert not thread.is_alive()
    assert not bench.context.redis.exists(lease)
    bench.close()


def test_the_filler_outlives_redis(
    outbox_url: str, private_redis: RedisServer, namespace: str
) -> None:
    bench = Bench(outbox_url, private_redis.url, namespace=namespace)

    def dispatched(ids: list[int]) -> bool:
        consume(bench, threads=50)
        return states(bench, ids) == {"dispatched": len(ids)}

    with _running(Filler(bench.context), bench) as thread:
        first = add(bench, 2)
        eventually(lambda: dispatched(first))
        private_redis.stop()
        second = add(bench, 2)
        private_redis.start()
        eventually(lambda: dispatched(second), 20)
    assert not thread.is_alive()
    bench.close()


@contextlib.contextmanager
def _running(filler: Filler, bench: Bench) -> Iterator[threading.Thread]:
    stop = threading.Event()
    thread = threading.Thread(target=filler.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        bench.context.scripts.ring_filler()
        thread.join(10)
