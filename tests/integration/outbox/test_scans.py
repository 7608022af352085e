"""What is due and what was never dispatched comes back, exactly that, and nobody starves."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from shared.outbox.compensator import Compensator
from shared.outbox.scans import Scans
from shared.outbox.signals import Redelivered
from shared.outbox.window import Place
from tests.support.eventually import eventually
from tests.support.filling import (
    QUEUE,
    TELLING,
    add,
    clock,
    consume,
    in_state,
    read_lanes,
    states,
    update_lanes,
)
from tests.support.outbox import Bench

PLACE = Place(QUEUE, "")


def _scans(bench: Bench) -> Scans:
    return Scans(bench.context, bench.context.db.line())


@pytest.fixture
def scans(bench: Bench) -> Scans:
    return _scans(bench)


@pytest.fixture
def small(outbox_url: str, redis_url: str, namespace: str) -> Iterator[Bench]:
    """Pages of three rows."""
    made = Bench(outbox_url, redis_url, namespace=namespace, scan_page=3)
    yield made
    made.close()


def _past(bench: Bench, seconds: float) -> dt.datetime:
    return clock(bench) - dt.timedelta(seconds=seconds)


# -- due -------------------------------------------------------------------------------------


def test_what_is_due_becomes_pending_and_nothing_else(bench: Bench, scans: Scans) -> None:
    (due,) = add(bench, state="scheduled", age_seconds=1)
    (later,) = add(bench, state="scheduled", age_seconds=-60)
    (elsewhere,) = add(bench, state="scheduled", age_seconds=1, region="eu")

    assert scans.due([PLACE]) == 1

    row = bench.columns(due)
    assert row["state"] == "pending"
    # The order of fairness stays; the due time moves up, so that bounds that trail hold.
    assert row["order_at"] < row["due_at"]
    assert bench.read(later).state == "scheduled"
    assert bench.read(elsewhere).state == "scheduled"
    assert bench.seen(Redelivered) == [Redelivered("due", 1)]
    assert scans.due([PLACE, Place(QUEUE, "eu")]) == 1


def test_the_lane_of_what_became_due_is_there_and_low_enough(bench: Bench, scans: Scans) -> None:
    (due,) = add(bench, state="scheduled", age_seconds=3600, tenant_id="acme", priority=2)
    scans.due([PLACE])
    ((key, lane),) = read_lanes(bench).items()
    assert key == (QUEUE, "", "acme", 2)
    assert lane["watermark"] <= bench.read(due).order_at
    update_lanes(bench, watermark=clock(bench))
    bench.set(due, state="scheduled")

    scans.due([PLACE])

    (lane,) = read_lanes(bench).values()
    assert lane["watermark"] <= bench.read(due).order_at
    assert lane["version"] == 1


def test_all_that_is_due_goes_in_pages(small: Bench) -> None:
    ids = add(small, 11, state="scheduled", age_seconds=10)
    assert _scans(small).due([PLACE]) == 11
    assert in_state(small, "pending") == ids


def test_rows_that_fall_due_later_are_seen_by_the_bounded_scan(bench: Bench, scans: Scans) -> None:
    scans.due([PLACE])
    (soon,) = add(bench, state="scheduled", age_seconds=-0.2)
    eventually(lambda: scans.due([PLACE]) == 1)
    assert bench.read(soon).state == "pending"


def test_a_row_of_a_transaction_that_commits_late_is_seen(bench: Bench, scans: Scans) -> None:
    scans.due([PLACE])
    add(bench, state="scheduled", age_seconds=4)
    assert scans.due([PLACE]) == 1


@pytest.mark.databases("mariadb")
def test_locked_rows_do_not_hold_up_those_behind(small: Bench) -> None:
    ids = add(small, 9, state="scheduled", age_seconds=3)
    scans = _scans(small)
    with small.locked(*ids[:4]):
        assert scans.due([PLACE]) == 5
        assert in_state(small, "scheduled") == ids[:4]
    assert scans.due([PLACE]) == 4


def test_two_scanners_bring_each_row_back_once(
    outbox_url: str, redis_url: str, namespace: str
) -> None:
    benches = [Bench(outbox_url, redis_url, namespace=namespace, scan_page=7) for _ in range(2)]
    add(benches[0], 100, state="scheduled", age_seconds=3)
    add(benches[0], 100, state="dispatching", dispatch_id="d", lease_until=_past(benches[0], 1))
    counts: list[int] = []
    barrier = threading.Barrier(2)

    def scan(bench: Bench) -> None:
        scans = _scans(bench)
        barrier.wait(10)
        for _ in range(3):
            counts.append(scans.due([PLACE]))
            counts.append(scans.dispatch_expired())

    threads = [threading.Thread(target=scan, args=(bench,)) for bench in benches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(counts) == 200
    assert states(benches[0]) == {"pending": 200}
    for bench in benches:
        bench.close()


# -- dispatching -----------------------------------------------------------------------------


def test_a_dispatch_that_did_not_get_through_in_time_is_pending_again(
    bench: Bench, scans: Scans
) -> None:
    bench.context.kinds.register(TELLING)
    (expired,) = add(
        bench,
        kind=TELLING.name,
        state="dispatching",
        dispatch_id="d1",
        lease_until=_past(bench, 1),
        tenant_id="acme",
    )
    (fresh,) = add(bench, state="dispatching", dispatch_id="d2", lease_until=_past(bench, -20))

    assert scans.dispatch_expired() == 1

    row = bench.columns(expired)
    assert (row["state"], row["dispatch_id"], row["lease_until"]) == ("pending", None, None)
    assert bench.event_types(expired) == ["pending"]
    assert list(read_lanes(bench)) == [(QUEUE, "", "acme", 1)]
    assert bench.read(fresh).state == "dispatching"
    assert bench.seen(Redelivered) == [Redelivered("dispatch_expired", 1)]


def test_expired_dispatches_go_in_pages_also_when_of_one_moment(small: Bench) -> None:
    moment = _past(small, 1)
    for number in range(10):
        add(small, state="dispatching", dispatch_id=f"d{number}", lease_until=moment)
    assert _scans(small).dispatch_expired() == 10


# -- all together ----------------------------------------------------------------------------


def test_one_turn_brings_everything_back_and_fills(bench: Bench) -> None:
    consume(bench, threads=50)
    add(bench, 2, state="scheduled", age_seconds=3)
    add(bench, 1, state="dispatching", dispatch_id="d1", lease_until=_past(bench, 1))
    (lost,) = add(bench)
    bench.run(lost)
    bench.expire(lost)
    compensator = Compensator(bench.context, bench.enqueuer)
    done = compensator.run_once()
    assert (done.due, done.dispatch_expired, done.recovered, done.filled) == (2, 1, 1, 3)
    assert states(bench) == {"dispatched": 3, "scheduled": 1}
    compensator.close()


@pytest.mark.databases("mariadb")
def test_after_a_database_outage_owners_get_one_lease_to_come_back(
    private_mariadb: Any, redis_url: str, namespace: str
) -> None:
    from tests.support.schema import create_outbox

    url = private_mariadb.url(private_mariadb.create_database())
    create_outbox(url)
    bench = Bench(
        url,
        redis_url,
        namespace=namespace,
        scan_seconds=0.1,
        lease_seconds=4,
        renew_seconds=1,
        recovery_min_seconds=1,
        recovery_max_seconds=1,
    )
    (task_id,) = add(bench)
    bench.run(task_id, lease_seconds=60)
    compensator = Compensator(bench.context, bench.enqueuer)
    stop = threading.Event()
    thread = threading.Thread(target=compensator.run, args=(stop,), daemon=True)
    thread.start()
    try:
        private_mariadb.stop()
        eventually(lambda: compensator._was_away)
        private_mariadb.start()
        back = clock(bench)
        bench.expire(task_id)
        scanned = compensator.last_ok
        eventually(lambda: compensator.last_ok > scanned and not compensator._was_away)
        eventually(lambda: bench.read(task_id).state == "scheduled", 20)
        assert (clock(bench) - back).total_seconds() >= 3.5
    finally:
        stop.set()
        bench.context.scripts.ring_filler()
        thread.join(10)
    assert not thread.is_alive()
    bench.close()
