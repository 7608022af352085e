"""Lane rows: there for every pending row, written alone, dropped only while nothing needs them."""

from __future__ import annotations

import datetime as dt
import threading

import pytest
import sqlalchemy as sa

from shared.outbox.lanes import (
    LaneKey,
    Lanes,
    drop_idle_lanes,
    have_pending,
    insert_lanes,
    lower_lanes,
    pending_lanes,
)
from shared.outbox.schema import lanes
from shared.outbox.window import EPOCH, Place
from tests.support.eventually import eventually
from tests.support.filling import QUEUE, add, clock, read_lanes, update_lanes
from tests.support.outbox import Bench

LANE = LaneKey(QUEUE, "", "acme", 1)
PLACE = Place(QUEUE, "")


def _drop(bench: Bench) -> int:
    line = bench.context.db.line()
    try:
        return drop_idle_lanes(bench.context.db, PLACE, line=line)
    finally:
        line.close()


def _age(bench: Bench, seconds: float) -> None:
    update_lanes(bench, touched_at=clock(bench) - dt.timedelta(seconds=seconds))


def test_ensure_inserts_what_is_missing_once(bench: Bench) -> None:
    known = Lanes(bench.context)
    known.ensure([LANE, LANE, LANE._replace(priority=0)])
    found = read_lanes(bench)
    assert set(found) == {LANE, LANE._replace(priority=0)}
    assert found[LANE]["watermark"] == EPOCH

    with bench.engine.begin() as connection:
        connection.execute(sa.delete(lanes))
    # Remembered for half a minute: nobody asks the database.
    known.ensure([LANE])
    assert read_lanes(bench) == {}
    Lanes(bench.context).ensure([LANE])
    assert set(read_lanes(bench)) == {LANE}


def test_ensure_touches_a_lane_that_might_be_dropped_while_it_is_remembered(bench: Bench) -> None:
    Lanes(bench.context).ensure([LANE])
    _age(bench, 15)
    before = read_lanes(bench)[LANE]["touched_at"]
    Lanes(bench.context).ensure([LANE])
    assert read_lanes(bench)[LANE]["touched_at"] == before

    _age(bench, 25)
    Lanes(bench.context).ensure([LANE])
    age = clock(bench) - read_lanes(bench)[LANE]["touched_at"]
    assert age < dt.timedelta(seconds=10)


def test_a_lane_is_dropped_after_an_empty_minute_and_not_before(bench: Bench) -> None:
    Lanes(bench.context).ensure([LANE])
    _age(bench, 50)
    assert _drop(bench) == 0
    _age(bench, 70)
    (task_id,) = add(bench, tenant_id="acme", age_seconds=3600)
    assert _drop(bench) == 0
    bench.set(task_id, state="running")
    assert _drop(bench) == 1
    assert read_lanes(bench) == {}


@pytest.mark.databases("mariadb")
def test_a_lane_that_another_holds_is_not_dropped(bench: Bench) -> None:
    Lanes(bench.context).ensure([LANE])
    _age(bench, 70)
    with bench.engine.connect() as connection, connection.begin():
        connection.execute(sa.select(lanes).with_for_update())
        assert _drop(bench) == 0
    assert _drop(bench) == 1


@pytest.mark.databases("mariadb")
def test_who_ensures_while_a_lane_is_being_dropped_inserts_it_again(bench: Bench) -> None:
    """The drop has looked for rows, and has not deleted yet, when a row commits."""
    Lanes(bench.context).ensure([LANE])
    _age(bench, 70)
    ensuring = threading.Thread(target=Lanes(bench.context).ensure, args=([LANE],), daemon=True)
    with bench.engine.connect() as connection, connection.begin():
        connection.execute(sa.select(lanes).with_for_update())
        ensuring.start()
        bench.await_lock_wait()
        connection.execute(sa.delete(lanes))
    ensuring.join(10)
    assert not ensuring.is_alive()
    assert set(read_lanes(bench)) == {LANE}


def test_lowering_takes_the_least_and_always_counts(bench: Bench) -> None:
    Lanes(bench.context).ensure([LANE])
    high = dt.datetime(2026, 5, 1)
    update_lanes(bench, watermark=high)
    lower_lanes(bench.context.db, [(LANE, high + dt.timedelta(days=1))])
    row = read_lanes(bench)[LANE]
    assert (row["watermark"], row["version"]) == (high, 1)

    low = high - dt.timedelta(days=1)
    lower_lanes(bench.context.db, [(LANE, high), (LANE, low), (LANE, high)])
    row = read_lanes(bench)[LANE]
    assert (row["watermark"], row["version"]) == (low, 2)


def test_lowering_a_lane_that_is_not_there_inserts_it(bench: Bench) -> None:
    lower_lanes(bench.context.db, [(LANE, clock(bench))])
    assert read_lanes(bench)[LANE]["watermark"] == EPOCH


def test_many_processes_may_ensure_and_lower_at_once(
    outbox_url: str, redis_url: str, namespace: str
) -> None:
    benches = [Bench(outbox_url, redis_url, namespace=namespace) for _ in range(4)]
    keys = [LaneKey(QUEUE, "", f"t{number}", 1) for number in range(8)]
    barrier = threading.Barrier(len(benches))
    errors: list[BaseException] = []

    def act(bench: Bench, number: int) -> None:
        mine = keys[number:] + keys[:number]
        barrier.wait(10)
        try:
            for _ in range(20):
                Lanes(bench.context).ensure(mine)
                lower_lanes(bench.context.db, [(key, EPOCH) for key in mine])
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=act, args=(bench, number)) for number, bench in enumerate(benches)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert {row["version"] for row in read_lanes(benches[0]).values()} >= {80}
    for bench in benches:
        bench.close()


def test_the_lanes_of_pending_rows_are_found_by_steps(bench: Bench) -> None:
    for tenant in ("", "acme", "zoo"):
        for priority in (0, 3):
            add(bench, 3, tenant_id=tenant, priority=priority)
    add(bench, 2, tenant_id="busy", state="running")
    add(bench, 2, tenant_id="elsewhere", region="eu")
    line = bench.context.db.line()
    found = pending_lanes(bench.context.db, PLACE, line=line)
    assert found == [
        LaneKey(QUEUE, "", tenant, priority)
        for tenant in ("", "acme", "zoo")
        for priority in (0, 3)
    ]
    line.close()


def test_many_lanes_are_looked_into_at_once(bench: Bench) -> None:
    tenants = [f"t{number:03}" for number in range(120)]
    for tenant in tenants[::3]:
        add(bench, 1, tenant_id=tenant)
    line = bench.context.db.line()
    looks = [(tenant, 1, EPOCH) for tenant in tenants]
    answers = have_pending(bench.context.db, PLACE, looks, line=line)
    assert [tenant for tenant, answer in zip(tenants, answers, strict=True) if answer] == (
        tenants[::3]
    )
    after = clock(bench) + dt.timedelta(hours=1)
    assert have_pending(bench.context.db, PLACE, [(tenants[0], 1, after)], line=line) == [False]
    line.close()


@pytest.mark.databases("mariadb")
def test_nobody_who_writes_lanes_waits_for_an_enqueueing_transaction(bench: Bench) -> None:
    """An open transaction with pending rows holds no lane."""
    with bench.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql(
            "INSERT INTO tasks (queue, kind, tenant_id, state, payload, due_at, order_at, "
            "created_at) VALUES ('mail', 'mail.plain', 'acme', 'pending', '{}', NOW(6), NOW(6), "
            "NOW(6))"
        )
        done = threading.Event()

        def write() -> None:
            insert_lanes(bench.context.db, [LANE])
            lower_lanes(bench.context.db, [(LANE, EPOCH)])
            done.set()

        threading.Thread(target=write, daemon=True).start()
        eventually(done.is_set, 3)
