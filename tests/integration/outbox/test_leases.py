"""Tasks whose worker is gone come back or end, with their hooks, and nobody waits for the stuck."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest

from shared.core.errors import UnavailableError
from shared.outbox.leases import Leases
from shared.outbox.signals import LeasesRecovered
from tests.support.filling import add, clock
from tests.support.outbox import Bench, Things, Touch


def _leases(bench: Bench) -> Leases:
    return Leases(bench.context, bench.ends, bench.context.db.line())


@pytest.fixture
def leases(bench: Bench) -> Leases:
    return _leases(bench)


@pytest.fixture
def small(outbox_url: str, redis_url: str, namespace: str) -> Iterator[Bench]:
    """Pages of three rows."""
    made = Bench(outbox_url, redis_url, namespace=namespace, scan_page=3)
    yield made
    made.close()


def _past(bench: Bench, seconds: float) -> dt.datetime:
    return clock(bench) - dt.timedelta(seconds=seconds)


def test_a_lost_execution_comes_back_after_a_while(
    bench: Bench, leases: Leases, things: Things
) -> None:
    bench.context.kinds.register(things.kind())
    task_id = bench.put("mail.send", Touch())
    held = bench.put("mail.send", Touch())
    execution = bench.run(task_id)
    bench.run(held)
    bench.expire(task_id)

    assert leases.run_once() == (1, 0)

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
    bench: Bench, leases: Leases, things: Things
) -> None:
    bench.context.kinds.register(things.kind(max_recoveries=5))
    things.add(7)
    fifth, sixth = (bench.put("mail.send", Touch(thing_id=7)) for _ in range(2))
    _lose(bench, fifth, recoveries=4, crashes=4)
    _lose(bench, sixth, recoveries=5, crashes=5)

    assert leases.run_once() == (1, 1)

    assert bench.read(fifth).state == "scheduled"
    row = bench.columns(sixth)
    assert (row["state"], row["error_code"]) == ("failed", "crashed")
    assert (row["recoveries"], row["crashes"]) == (6, 6)
    assert row["finished_at"] is not None
    assert things.state(7) == "task failed"
    assert [outcome for _, outcome in things.ended] == ["failed"]
    assert [attempt["outcome"] for attempt in bench.attempts(sixth)] == ["crashed"]


def test_progress_does_not_save_a_task_that_always_crashes(
    bench: Bench, leases: Leases, things: Things
) -> None:
    bench.context.kinds.register(things.kind(max_recoveries=5))
    task_id = bench.put("mail.send", Touch())
    _lose(bench, task_id, recoveries=0, crashes=18)
    assert leases.run_once() == (1, 0)
    _lose(bench, task_id, recoveries=0, crashes=19)
    assert leases.run_once() == (0, 1)
    assert bench.read(task_id).error_code == "crashed"


def test_a_setting_replaces_every_kinds_number(
    outbox_url: str, redis_url: str, namespace: str
) -> None:
    bench = Bench(outbox_url, redis_url, namespace=namespace, max_recoveries=50)
    (task_id,) = add(bench)
    _lose(bench, task_id, recoveries=49, crashes=49)
    assert _leases(bench).run_once() == (1, 0)
    bench.close()


def test_an_acknowledged_cancel_is_kept_when_the_worker_dies(
    bench: Bench, leases: Leases, things: Things
) -> None:
    bench.context.kinds.register(things.kind())
    things.add(7)
    task_id = bench.put("mail.send", Touch(thing_id=7))
    _lose(bench, task_id, cancel_requested=1)
    bench.set(task_id, cancel_requested=1, error_code="superseded", error_detail="newer")

    assert leases.run_once() == (0, 1)

    row = bench.read(task_id)
    assert (row.state, row.error_code) == ("cancelled", "superseded")
    assert things.state(7) == "task cancelled"


def test_a_kind_unknown_here_leaves_a_settle_task(
    bench: Bench, other: Bench, things: Things
) -> None:
    bench.context.kinds.register(things.kind())
    task_id = bench.put("mail.send", Touch())
    _lose(bench, task_id, recoveries=5, crashes=5)

    assert _leases(other).run_once() == (0, 1)

    assert bench.read(task_id).state == "failed"
    assert things.ended == []
    settle = bench.read(task_id + 1)
    assert (settle.kind, settle.state) == ("mail.settle", "pending")


def test_a_lease_renewed_meanwhile_is_left_alone(bench: Bench, leases: Leases) -> None:
    (task_id,) = add(bench)
    bench.run(task_id)
    leases._end(bench.read(task_id))
    done, over = leases._recover([task_id])
    assert (done, over) == (set(), [])
    assert bench.read(task_id).state == "running"


@pytest.mark.databases("mariadb")
def test_a_row_that_its_owner_is_just_settling_is_left_to_it(bench: Bench, leases: Leases) -> None:
    first, second = add(bench, 2)
    for task_id in (first, second):
        bench.run(task_id)
        bench.expire(task_id)
    with bench.locked(first):
        assert leases.run_once() == (1, 0)
        assert bench.read(first).state == "running"
    # It is old, and was read already: it must not be forgotten until the next full scan.
    assert leases.run_once() == (1, 0)


def test_a_task_that_cannot_be_ended_does_not_hold_up_the_others(small: Bench) -> None:
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
    leases = _leases(small)
    recovered, _ = leases.run_once()
    assert recovered == 4
    assert {small.read(task_id).state for task_id in behind} == {"scheduled"}
