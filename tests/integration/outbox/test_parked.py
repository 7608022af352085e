"""Tasks that wait for a place: parked, woken by the scan, and never lost with Redis."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
import sqlalchemy as sa

from shared.coordination.slots import reservation
from shared.core.errors import ResourceBusy, SlotLost
from shared.core.outcomes import Snooze
from shared.outbox.parked_scan import ParkedScan
from shared.outbox.schema import tasks
from tests.support.outbox import Bench
from tests.support.parking import KIND, NAME, Stage

# -- parking -------------------------------------------------------------------------------------


def test_who_parks_looks_once_more(stage: Stage) -> None:
    # The place was given back between the look and the commit: nobody else would wake it.
    task_id = stage.put()
    with stage.full():
        pass
    stage.park(task_id)
    row = stage.bench.columns(task_id)
    assert (row["state"], row["slots"]) == ("pending", {NAME: reservation(task_id)})


def test_parked_for_a_time_waits_for_it(stage: Stage) -> None:
    task_id = stage.put()
    stage.park(task_id, 30.0)
    assert stage.state(task_id) == "blocked"
    assert stage.scan.run_once() == 0
    stage.bench.set(task_id, due_at=stage.bench.read(task_id).now)
    assert stage.scan.run_once() == 1
    assert stage.state(task_id) == "pending"


def test_those_that_wait_for_a_time_do_not_hide_those_behind_them(stage: Stage) -> None:
    early = [stage.put() for _ in range(3)]
    for task_id in early:
        stage.park(task_id, 30.0)
    (due,) = stage.parked(1)
    assert stage.scan.run_once() == 1
    assert stage.state(due) == "pending"
    assert {stage.state(task_id) for task_id in early} == {"blocked"}


def test_scan_wakes_as_many_as_places_are_free(stage: Stage) -> None:
    stage.limit.value = 3
    ids = stage.parked(5)
    assert stage.scan.run_once() == 3
    assert stage.scan.run_once() == 0
    assert [stage.state(task_id) for task_id in ids] == ["pending"] * 3 + ["blocked"] * 2


def test_who_waited_for_a_minute_may_look_for_another_way(stage: Stage) -> None:
    """A few of them: those who have none come back, and the next is let look a minute later."""
    ids = [stage.put() for _ in range(6)]
    with stage.full():
        for task_id in ids:
            stage.park(task_id)
        assert stage.scan.run_once() == 0
        for task_id in ids:
            past = stage.bench.read(task_id).now - dt.timedelta(seconds=61)
            stage.bench.set(task_id, due_at=past)
        assert stage.scan.run_once() == 1
        assert stage.bench.columns(ids[0])["slots"] is None
        stage.park(ids[0])
        assert stage.state(ids[0]) == "blocked"
        assert stage.scan.run_once() == 0
        stage.bench.set(ids[0], state="completed", resource_key=None)
        assert [stage.scan.run_once() for _ in range(3)] == [1, 2, 2]


def test_tenants_are_stepped_through_around_the_last_served(stage: Stage) -> None:
    ids = {tenant: stage.parked(2, tenant) for tenant in "abcdef"}
    rows = stage.bench.resources._parking.rows

    def tenants(count: int) -> str:
        return "".join(row.lane.tenant_id for row in rows.next(NAME, count))

    assert tenants(4) == "abcd"
    stage.bench.context.turns[NAME] = "d"
    assert (tenants(4), tenants(9)) == ("efab", "efabcdefa")
    assert [row.id for row in rows.next(NAME, 12)][:6] == [ids[t][0] for t in "efabcd"]
    stage.bench.context.turns[NAME] = "zz"
    assert tenants(2) == "ab"


def test_limit_that_was_removed_wakes_all_more_and_more(stage: Stage) -> None:
    stage.parked(10)
    stage.limit.value = 0
    assert [stage.scan.run_once() for _ in range(5)] == [1, 2, 4, 3, 0]


def test_those_who_come_back_slow_the_scan_down(stage: Stage) -> None:
    ids = stage.parked(10)
    stage.limit.value = 0
    assert [stage.scan.run_once() for _ in range(3)] == [1, 2, 4]
    stage.park(ids[6])
    assert stage.scan.run_once() == 1


def test_without_places_a_parked_task_waits_for_its_time_alone(bench: Bench) -> None:
    bench.context.kinds.register(KIND)
    first, second = bench.put(KIND), bench.put(KIND)
    bench.answers.settle(bench.run(first), Snooze(0, "full", resource=NAME))
    bench.answers.settle(bench.run(second), Snooze(60, "broken", resource="channel:b"))
    scan = ParkedScan(bench.context, bench.context.db.line())
    assert scan.run_once() == 1
    assert bench.read(first).state == "pending"
    assert bench.read(second).state == "blocked"


def test_success_wakes_what_waits_for_a_time(stage: Stage) -> None:
    stage.limit.value = 0
    ids = [stage.put() for _ in range(3)]
    for task_id in ids:
        stage.park(task_id, 60.0)
    assert stage.bench.resources.wake(NAME, 2) == 2
    assert [stage.state(task_id) for task_id in ids] == ["pending", "pending", "blocked"]


# -- losses --------------------------------------------------------------------------------------


def test_lost_place_stops_the_execution_which_is_given_back(stage: Stage) -> None:
    task_id = stage.put()
    execution = stage.bench.run(task_id)
    with stage.hold(execution):
        stage.slots.release(NAME, execution.slots[NAME])
        stage.bench.heartbeat.renew([execution])
        with pytest.raises(SlotLost):
            execution.check()
    stage.bench.answers.settle(execution, execution.stop_error)  # type: ignore[arg-type]
    row = stage.bench.columns(task_id)
    assert (row["state"], row["attempt"], row["slots"]) == ("pending", 0, None)


def test_flush_is_made_up_for_by_the_next_renewal(
    stage: Stage, twin: Stage, redis_server: Any
) -> None:
    execution = stage.bench.run(stage.put())
    with stage.hold(execution):
        _forget(stage, redis_server)
        assert stage.bench.heartbeat.renew([execution]) == set()
        execution.check()
        with pytest.raises(ResourceBusy), twin.hold(twin.bench.run(twin.put())):
            pass


def test_flush_is_made_up_for_by_the_next_who_asks(
    stage: Stage, twin: Stage, redis_server: Any
) -> None:
    execution = stage.bench.run(stage.put())
    with stage.hold(execution):
        _forget(stage, redis_server)
        with pytest.raises(ResourceBusy), twin.hold(twin.bench.run(twin.put())):
            pass
        assert stage.bench.heartbeat.renew([execution]) == set()
        execution.check()
    with twin.hold(twin.bench.run(twin.put())):
        pass


@pytest.mark.parametrize("point", ["slots.acquired", "slots.written"])
def test_place_of_an_epoch_that_is_over_is_not_used(
    stage: Stage, redis_server: Any, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The rows were read before its token stood there: another has been let in since."""
    from shared.outbox import resources

    def flush_at(name: str) -> None:
        if name == point:
            monkeypatch.setattr(resources, "failpoint", lambda _: None)
            _forget(stage, redis_server)
            right = stage.slots.begin_rebuild()
            assert right is not None
            stage.slots.enter(right, [])

    monkeypatch.setattr(resources, "failpoint", flush_at)
    task_id = stage.put()
    execution = stage.bench.run(task_id)
    with pytest.raises(SlotLost), stage.hold(execution):
        raise AssertionError("the place was used")
    assert stage.slots.in_use(NAME) == 0


def _forget(stage: Stage, redis_server: Any) -> None:
    """Lose every slot key of this test, as a flush would."""
    with redis_server.client() as client:
        for key in client.scan_iter(f"{stage.slots._prefix}*"):
            client.delete(key)


def test_resource_key_is_set_in_parked_rows_alone(stage: Stage) -> None:
    stage.parked(2)
    stage.scan.run_once()
    with stage.bench.engine.connect() as connection:
        found = connection.execute(
            sa.select(tasks.c.state).where(tasks.c.resource_key.is_not(None))
        ).scalars()
        assert set(found) == {"blocked"}
