"""Tasks that wait for a place on a resource: parked, woken one by one, fairly, and never lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from shared.coordination.slots import RedisSlots, reservation
from shared.core.errors import LeaseLost, ResourceBusy, SlotLost
from shared.core.failpoints import arm
from shared.core.outcomes import Snooze
from shared.outbox.cancel import cancel
from shared.outbox.execution import Execution
from shared.outbox.kinds import Kind
from shared.outbox.parked_scan import ParkedScan
from shared.outbox.schema import lanes, tasks
from tests.support.outbox import Bench, Touch

NAME = "channel:a"
KIND = Kind(name="mail.send", payload=Touch, events=True)


class Limit:
    """The same number for every resource, to be changed."""

    def __init__(self, value: int) -> None:
        self.value = value

    def limit(self, name: str) -> int:
        return self.value


class Stage:
    """A process with places and limits."""

    def __init__(self, url: str, redis_url: str, namespace: str, limit: Limit, node: str) -> None:
        self.limit = limit
        self.slots = RedisSlots(redis_url, namespace, slot_seconds=8.0)
        self.bench = Bench(
            url,
            redis_url,
            namespace=namespace,
            node=node,
            kinds=[KIND],
            places=self.slots,
            limits=limit,
        )
        self.scan = ParkedScan(self.bench.context, self.bench.context.db.line())

    def put(self, tenant_id: str = "acme") -> int:
        return self.bench.put(KIND, tenant_id=tenant_id)

    def hold(self, execution: Execution) -> Any:
        return self.bench.resources.hold(execution, NAME, limit=self.limit.value)

    def park(self, task_id: int, seconds: float = 0.0) -> None:
        """Claim a task and park it."""
        execution = self.bench.run(task_id)
        self.bench.answers.settle(execution, Snooze(seconds, "full", resource=NAME))

    def parked(self, count: int, tenant_id: str = "acme") -> list[int]:
        """Return tasks that are parked while the places are taken by nobody's tokens."""
        ids = [self.put(tenant_id) for _ in range(count)]
        with self.full():
            for task_id in ids:
                self.park(task_id)
        return ids

    def full(self) -> Any:
        return _Full(self)

    def state(self, task_id: int) -> str:
        return str(self.bench.read(task_id).state)

    def close(self) -> None:
        self.bench.close()
        self.slots.close()


class _Full:
    """Takes every place for the length of a block."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def __enter__(self) -> None:
        slots, self.tokens = self.stage.slots, []
        if slots.in_use(NAME) is None:
            right = slots.begin_rebuild()
            assert right is not None
            assert slots.enter(right, [])
        while (
            slots.acquire(NAME, f"x{len(self.tokens)}", limit=self.stage.limit.value, task_id=0)[0]
            == "held"
        ):
            self.tokens.append(f"x{len(self.tokens)}")

    def __exit__(self, *_: object) -> None:
        for token in self.tokens:
            self.stage.slots.release(NAME, token)


@pytest.fixture
def stage(outbox_url: str, redis_url: str, namespace: str) -> Iterator[Stage]:
    made = Stage(outbox_url, redis_url, namespace, Limit(1), "node-1")
    yield made
    made.close()


@pytest.fixture
def twin(outbox_url: str, redis_url: str, namespace: str, stage: Stage) -> Iterator[Stage]:
    """Another process."""
    made = Stage(outbox_url, redis_url, namespace, stage.limit, "node-2")
    yield made
    made.close()


# -- holding -------------------------------------------------------------------------------------


def test_place_is_held_for_the_block_and_stands_in_the_row(stage: Stage) -> None:
    task_id = stage.put()
    execution = stage.bench.run(task_id)
    with stage.hold(execution):
        (token,) = stage.bench.columns(task_id)["slots"].values()
        assert execution.slots == {NAME: token}
        assert stage.slots.in_use(NAME) == 1
        with stage.hold(execution):  # the same place
            assert stage.slots.in_use(NAME) == 1
        with execution.complete():
            pass
        assert stage.bench.columns(task_id)["slots"] is None
    assert stage.slots.in_use(NAME) == 0
    assert execution.slots == {}


def test_full_resource_parks_without_an_attempt(stage: Stage) -> None:
    first, second = stage.put(), stage.put()
    holder = stage.bench.run(first)
    with stage.hold(holder):
        execution = stage.bench.run(second)
        with pytest.raises(ResourceBusy) as caught, stage.hold(execution):
            pass
        stage.bench.answers.settle(execution, caught.value)
        row = stage.bench.columns(second)
        assert (row["state"], row["resource_key"], row["attempt"]) == ("blocked", NAME, 0)
        assert (row["owner"], row["lease_until"], row["slots"]) == (None, None, None)
        assert row["error_code"] == "parked"
        event = stage.bench.events(second)[-1]
        assert (event["type"], event["data"]["to"]) == ("parked", "blocked")
        assert event["data"]["resource"] == NAME
        assert stage.bench.attempts(second) == []
        assert stage.scan.run_once() == 0
    # The release has handed the place over.
    row = stage.bench.columns(second)
    assert (row["state"], row["resource_key"]) == ("pending", None)
    assert row["slots"] == {NAME: reservation(second)}
    assert stage.bench.event_types(second)[-1] == "pending"
    third = stage.bench.run(stage.put())
    with pytest.raises(ResourceBusy), stage.hold(third):
        pass
    with stage.hold(stage.bench.run(second)):
        assert stage.slots.in_use(NAME) == 1


def test_without_a_limit_nothing_is_asked(stage: Stage) -> None:
    stage.limit.value = 0
    execution = stage.bench.run(stage.put())
    seen: list[str] = []
    sa.event.listen(stage.bench.engine, "before_cursor_execute", lambda *args: seen.append(args[2]))
    sa.event.listen(stage.bench.engine, "begin", lambda connection: seen.append("begin"))
    stage.slots.close()
    with stage.hold(execution):
        pass
    assert seen == []


def test_fence_keeps_a_lost_execution_from_a_place(stage: Stage) -> None:
    task_id = stage.put()
    execution = stage.bench.run(task_id)
    stage.bench.set(task_id, fence=99)
    with pytest.raises(LeaseLost), stage.hold(execution):
        pass
    assert stage.slots.in_use(NAME) == 0


# -- handing over --------------------------------------------------------------------------------


def test_release_serves_tenants_in_turn(stage: Stage) -> None:
    rich = stage.parked(6, "rich")
    poor = stage.parked(2, "poor")
    served: list[int] = []
    for _ in range(8):
        holder = stage.bench.run(stage.put("other"))
        with stage.hold(holder):
            pass
        (woken,) = [i for i in (*rich, *poor) if i not in served and stage.state(i) == "pending"]
        served.append(woken)
        with stage.hold(stage.bench.run(woken)):
            # Ended inside: it hands on as well, so the next look finds who came next.
            stage.bench.set(woken, state="completed")
            stage.slots.release(NAME, stage.bench.context.executions.find(woken).slots[NAME])  # type: ignore[union-attr]
    kinds = ["rich" if i in rich else "poor" for i in served]
    assert sorted(kinds[:4]) == ["poor", "poor", "rich", "rich"]
    assert [i for i in served if i in rich] == rich
    assert [i for i in served if i in poor] == poor


def test_hand_over_passes_by_a_row_that_is_parked_no_more(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stage.parked(2)
    rows = stage.bench.resources._parking.rows.next(NAME, 4)
    cancel(stage.bench.context, stage.bench.enqueuer, first, by="ann")
    # As it was read before the cancel.
    monkeypatch.setattr(
        type(stage.bench.resources._parking.rows), "next", lambda self, name, count: rows
    )
    with stage.hold(stage.bench.run(stage.put())):
        pass
    assert stage.state(first) == "cancelled"
    assert stage.bench.columns(second)["slots"] == {NAME: reservation(second)}
    assert stage.slots.in_use(NAME) == 1


def test_two_that_release_at_once_wake_two(stage: Stage, twin: Stage) -> None:
    stage.limit.value = 2
    ids = stage.parked(3)
    with stage.hold(stage.bench.run(stage.put())), twin.hold(twin.bench.run(twin.put())):
        pass
    states = [stage.state(task_id) for task_id in ids]
    assert states == ["pending", "pending", "blocked"]
    assert stage.slots.in_use(NAME) == 2


def test_cancelled_task_hands_its_reservation_on(stage: Stage) -> None:
    first, second = stage.parked(2)
    assert stage.scan.run_once() == 1
    assert (stage.state(first), stage.state(second)) == ("pending", "blocked")
    cancel(stage.bench.context, stage.bench.enqueuer, first, by="ann")
    row = stage.bench.columns(first)
    assert (row["state"], row["slots"], row["resource_key"]) == ("cancelled", None, None)
    assert stage.bench.columns(second)["slots"] == {NAME: reservation(second)}
    assert stage.slots.in_use(NAME) == 1


def test_cancelled_parked_task_is_gone_from_the_resource(stage: Stage) -> None:
    (task_id,) = stage.parked(1)
    cancel(stage.bench.context, stage.bench.enqueuer, task_id, by="ann")
    row = stage.bench.columns(task_id)
    assert (row["state"], row["resource_key"]) == ("cancelled", None)
    assert stage.scan.run_once() == 0


def test_broken_resource_is_not_handed_over(stage: Stage) -> None:
    (task_id,) = stage.parked(1)
    holder = stage.bench.run(stage.put())
    with stage.bench.resources.hold(holder, NAME, limit=1, is_well=lambda: False):
        pass
    assert stage.state(task_id) == "blocked"
    assert stage.slots.in_use(NAME) == 0


def test_death_between_reservation_and_row_is_made_up_for_by_the_scan(
    stage: Stage, twin: Stage
) -> None:
    (task_id,) = stage.parked(1)
    arm("parking.reserved=raise")
    try:
        with (
            pytest.raises(Exception, match=r"parking\.reserved"),
            stage.hold(stage.bench.run(stage.put())),
        ):
            pass
    finally:
        arm("")
    assert stage.state(task_id) == "blocked"
    assert twin.scan.run_once() == 0
    # The reservation is over.
    stage.slots.release(NAME, reservation(task_id))
    assert twin.scan.run_once() == 1
    assert stage.bench.columns(task_id)["slots"] == {NAME: reservation(task_id)}


def test_woken_row_lowers_its_lane(stage: Stage) -> None:
    (task_id,) = stage.parked(1)
    stage.scan.run_once()
    with stage.bench.engine.connect() as connection:
        lane = connection.execute(sa.select(lanes)).mappings().one()
    assert lane["watermark"] <= stage.bench.columns(task_id)["order_at"]


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


def test_scan_wakes_as_many_as_places_are_free(stage: Stage) -> None:
    stage.limit.value = 3
    ids = stage.parked(5)
    assert stage.scan.run_once() == 3
    assert stage.scan.run_once() == 0
    assert [stage.state(task_id) for task_id in ids] == ["pending"] * 3 + ["blocked"] * 2


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
