"""Places on a resource: held for a block, and handed to the next when it ends."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from shared.coordination.slots import reservation
from shared.core.errors import LeaseLost, ResourceBusy
from shared.core.failpoints import arm
from shared.outbox.cancel import cancel
from shared.outbox.schema import lanes
from tests.support.parking import NAME, Stage

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
