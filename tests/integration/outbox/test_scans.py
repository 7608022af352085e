"""The scans bring back what fell between two steps, exactly that, and nobody starves."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from shared.core.errors import UnavailableError
from shared.outbox.compensator import Compensator
from shared.outbox.scans import Scans
from shared.outbox.signals import LeasesRecovered, Redelivered
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
from tests.support.outbox import Bench, Things, Touch

PLACE = Place(QUEUE, "")


def _scans(bench: Bench) -> Scans:
    return Scans(bench.context, bench.ends, bench.context.db.line())


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


# -- running ---------------------------------------------------------------------------------


def test_a_lost_execution_comes_back_after_a_while(
    bench: Bench, scans: Scans, things: Things
) -> None:
    bench.context.kinds.register(things.kind())
    task_id = bench.put("mail.send", Touch())
    held = bench.put("mail.send", Touch())
    execution = bench.run(task_id)
    bench.run(held)
    bench.expire(task_id)

    assert scans.leases() == (1, 0)

    row = bench.columns(task_id)
    assert row["state"] == "scheduled"
    assert (row["owner"], row["lease_until"], row["dispatch_id"]) == (None, None, None)
    assert (row["recoveries"], row["crashes"], row["attempt"]) == (1, 1, 0)
    assert row["fence"] == execution.fence
    assert 1.5 <= (row["due_at"] - clock(bench)).total_seconds() <= 30
    (attempt,) = bench.attempts(task_id)
    assert (attempt["outcome"], attempt["owner"]) == ("lease_lost", execution.owner)
    assert bench.event_types(task_id) == ["lease_lost"]
    assert bench.read(held).state == "running"
    assert things.ended == []
    assert bench.seen(LeasesRecovered) == [LeasesRecovered(1, 0)]


def _lose(bench: Bench, task_id: int, **values: Any) -> None:
    bench.set(task_id, **values)
    bench.run(task_id)
    bench.set(task_id, lease_until=_past(bench, 0.1))


def test_too_many_lost_leases_in_a_row_are_a_crash(
    bench: Bench, scans: Scans, things: Things
) -> None:
    bench.context.kinds.register(things.kind(max_recoveries=5))
    things.add(7)
    fifth, sixth = (bench.put("mail.send", Touch(thing_id=7)) for _ in range(2))
    _lose(bench, fifth, recoveries=4, crashes=4)
    _lose(bench, sixth, recoveries=5, crashes=5)

    assert scans.leases() == (1, 1)

    assert bench.read(fifth).state == "scheduled"
    row = bench.columns(sixth)
    assert (row["state"], row["error_code"]) == ("failed", "crashed")
    assert (row["recoveries"], row["crashes"]) == (6, 6)
    assert row["finished_at"] is not None
    assert things.state(7) == "task failed"
    assert [outcome for _, outcome in things.ended] == ["failed"]
    assert [attempt["outcome"] for attempt in bench.attempts(sixth)] == ["crashed"]


def test_progress_does_not_save_a_task_that_always_crashes(
    bench: Bench, scans: Scans, things: Things
) -> None:
    bench.context.kinds.register(things.kind(max_recoveries=5))
    task_id = bench.put("mail.send", Touch())
    _lose(bench, task_id, recoveries=0, crashes=18)
    assert scans.leases() == (1, 0)
    _lose(bench, task_id, recoveries=0, crashes=19)
    assert scans.leases() == (0, 1)
    assert bench.read(task_id).error_code == "crashed"


def test_a_setting_replaces_every_kinds_number(
    outbox_url: str, redis_url: str, namespace: str
) -> None:
    bench = Bench(outbox_url, redis_url, namespace=namespace, max_recoveries=50)
    (task_id,) = add(bench)
    _lose(bench, task_id, recoveries=49, crashes=49)
    assert _scans(bench).leases() == (1, 0)
    bench.close()


def test_an_acknowledged_cancel_is_kept_when_the_worker_dies(
    bench: Bench, scans: Scans, things: Things
) -> None:
    bench.context.kinds.register(things.kind())
    things.add(7)
    task_id = bench.put("mail.send", Touch(thing_id=7))
    _lose(bench, task_id, cancel_requested=1)
    bench.set(task_id, cancel_requested=1, error_code="superseded", error_detail="newer")

    assert scans.leases() == (0, 1)

    row = bench.read(task_id)
    assert (row.state, row.error_code) == ("cancelled", "superseded")
    assert things.state(7) == "task cancelled"


def test_a_kind_unknown_here_leaves_a_settle_task(
    bench: Bench, other: Bench, things: Things
) -> None:
    bench.context.kinds.register(things.kind())
    task_id = bench.put("mail.send", Touch())
    _lose(bench, task_id, recoveries=5, crashes=5)

    assert _scans(other).leases() == (0, 1)

    assert bench.read(task_id).state == "failed"
    assert things.ended == []
    settle = bench.read(task_id + 1)
    assert (settle.kind, settle.state) == ("mail.settle", "pending")


def test_a_lease_renewed_meanwhile_is_left_alone(bench: Bench, scans: Scans) -> None:
    (task_id,) = add(bench)
    bench.run(task_id)
    scans._end(bench.read(task_id))
    done, over = scans._recover([task_id])
    assert (done, over) == (set(), [])
    assert bench.read(task_id).state == "running"


@pytest.mark.databases("mariadb")
def test_a_row_that_its_owner_is_just_settling_is_left_to_it(bench: Bench, scans: Scans) -> None:
    first, second = add(bench, 2)
    for task_id in (first, second):
        bench.run(task_id)
        bench.expire(task_id)
    with bench.locked(first):
        assert scans.leases() == (1, 0)
        assert bench.read(first).state == "running"
    # It is old, and was read already: it must not be forgotten until the next full scan.
    assert scans.leases() == (1, 0)


def test_a_task_that_cannot_be_ended_does_not_hold_up_the_others(
    small: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    things = Things(small.engine)

    def lock(session: Any, payload: Touch) -> None:
        raise UnavailableError("the domain's rows cannot be read")

    small.context.kinds.register(things.kind("mail.stuck", max_recoveries=0))
    stuck = small.context.kinds.get("mail.stuck")
    object.__setattr__(stuck, "locks", lock)
    blocking = [small.put("mail.stuck", Touch()) for _ in range(7)]
    behind = add(small, 4)
    moment = _past(small, 60)
    for task_id in (*blocking, *behind):
        small.run(task_id)
        small.set(task_id, lease_until=moment)
    scans = _scans(small)
    recovered, _ = scans.leases()
    assert recovered == 4
    assert {small.read(task_id).state for task_id in behind} == {"scheduled"}


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
