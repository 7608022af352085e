"""Leases of a process: renewed together, never held up by one row, lost and cancelled ones seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shared.core.clock import monotonic
from shared.core.errors import CancelRequested, InvalidError, LeaseLost
from shared.outbox.cancel import cancel
from shared.outbox.execution import CLAIMED, ENDED, RUNNING, SETTLING
from shared.outbox.kinds import Kind
from shared.outbox.signals import LeaseLossSeen
from tests.servers.mariadb import MariaDB
from tests.support.eventually import eventually
from tests.support.outbox import Bench, Touch

MAIL = Kind(name="mail.send", payload=Touch)


@pytest.fixture(autouse=True)
def kinds(bench: Bench) -> None:
    bench.context.kinds.register(MAIL)


def test_renewal_counts_from_before_it_was_sent(bench: Bench) -> None:
    execution = bench.run(bench.put(MAIL), lease_seconds=5)
    before = monotonic()
    assert bench.heartbeat.renew([execution]) == set()
    lease = bench.context.settings.lease_seconds
    assert before + lease <= execution.lease_ends <= monotonic() + lease
    row = bench.columns(execution.task.id)
    left = (row["lease_until"] - bench.read(execution.task.id).now).total_seconds()
    # The row's lease ends later than we believe, never earlier.
    assert execution.lease_ends - monotonic() <= left + 0.001
    assert left > lease - 10


def test_unstarted_and_settling_leases_are_renewed_too(bench: Bench) -> None:
    executions = [bench.run(bench.put(MAIL), lease_seconds=5) for _ in range(4)]
    for execution, phase in zip(executions, (CLAIMED, RUNNING, SETTLING, ENDED), strict=True):
        execution.phase = phase
    before = [bench.columns(item.task.id)["lease_until"] for item in executions]
    bench.heartbeat.renew(executions)
    after = [bench.columns(item.task.id)["lease_until"] for item in executions]
    assert [new > old for new, old in zip(after, before, strict=True)] == [True, True, True, False]


@pytest.mark.databases("mariadb")
def test_one_locked_row_does_not_hold_up_three_hundred(bench: Bench) -> None:
    ids = [bench.put(MAIL) for _ in range(300)]
    # So long that claiming them all ends before the first, and shorter than a renewed one.
    executions = [bench.run(task_id, lease_seconds=25) for task_id in ids]
    stuck = executions[123]
    ends_before = stuck.lease_ends
    with bench.locked(stuck.task.id):
        started = monotonic()
        behind = bench.heartbeat.renew(executions)
        took = monotonic() - started
        assert behind == {stuck}
        # A lock wait would take five seconds.
        assert took < 4.5
        renewed = [item for item in executions if item.lease_ends > started + 30]
        assert len(renewed) == 299
        assert stuck.lease_ends == ends_before
        assert stuck.stop_error is None
    assert bench.heartbeat.renew(behind) == set()
    assert stuck.lease_ends > ends_before


@pytest.mark.databases("mariadb")
def test_cancel_of_a_locked_row_is_seen_all_the_same(bench: Bench) -> None:
    execution = bench.run(bench.put(MAIL))
    cancel(bench.context, bench.enqueuer, execution.task.id, by="ann")
    with bench.locked(execution.task.id):
        assert bench.heartbeat.renew([execution]) == {execution}
    assert isinstance(execution.stop_error, CancelRequested)


def test_lost_and_cancelled_executions_are_stopped(bench: Bench, other: Bench) -> None:
    names = ("fine", "expired", "taken", "cancelled", "gone")
    tasks = {name: bench.put(MAIL) for name in names}
    held = {name: bench.run(task_id) for name, task_id in tasks.items()}
    bench.expire(tasks["expired"])
    bench.set(tasks["taken"], state="pending", owner=None)
    other.context.kinds.register(MAIL)
    taken = other.run(tasks["taken"])
    cancel(other.context, other.enqueuer, tasks["cancelled"], by="ann")
    until = bench.columns(tasks["taken"])["lease_until"]
    bench.heartbeat.renew(held.values())
    assert held["fine"].stop_error is None
    assert isinstance(held["expired"].stop_error, LeaseLost)
    assert isinstance(held["taken"].stop_error, LeaseLost)
    assert isinstance(held["cancelled"].stop_error, CancelRequested)
    assert bench.seen(LeaseLossSeen) == [LeaseLossSeen(2)]
    # The lease of the other owner is not touched, and an expired one is never renewed back.
    assert bench.columns(tasks["taken"])["lease_until"] == until
    assert bench.columns(tasks["taken"])["owner"] == taken.owner
    assert not bench.read(tasks["expired"]).is_leased
    # A cancelled execution keeps its lease until it has settled.
    assert bench.read(tasks["cancelled"]).is_leased
    bench.heartbeat.renew(held.values())
    assert bench.seen(LeaseLossSeen) == [LeaseLossSeen(2)]


def test_unstarted_execution_that_was_lost_is_dropped(bench: Bench) -> None:
    execution = bench.run(bench.put(MAIL), phase=CLAIMED)
    bench.expire(execution.task.id)
    bench.heartbeat.renew([execution])
    assert execution.phase == ENDED
    assert len(bench.context.executions) == 0


def test_execution_that_has_just_settled_is_not_called_lost(bench: Bench) -> None:
    execution = bench.run(bench.put(MAIL))
    with execution.complete():
        pass
    execution.lease_ends = monotonic() + 10
    bench.heartbeat.look()
    bench.heartbeat.renew([execution])
    assert execution.stop_error is None
    settling = bench.run(bench.put(MAIL))
    settling.phase = SETTLING
    bench.set(settling.task.id, state="completed")
    bench.heartbeat.renew([settling])
    assert bench.seen(LeaseLossSeen) == []


def test_superseded_execution_is_told_so(bench: Bench) -> None:
    execution = bench.run(bench.put(MAIL))
    bench.set(execution.task.id, cancel_requested=1, error_code="superseded")
    bench.heartbeat.renew([execution])
    assert execution.stop_error is not None
    assert execution.stop_error.code == "superseded"


@pytest.fixture
def beating(outbox_url: str, redis_url: str, namespace: str) -> Iterator[Bench]:
    """A process whose heartbeat runs and renews rarely."""
    bench = Bench(outbox_url, redis_url, namespace=namespace, kinds=[MAIL])
    bench.heartbeat.start()
    yield bench
    assert bench.heartbeat.close(10)
    bench.close()


def test_bell_makes_a_cancel_seen_within_a_second(beating: Bench, bench: Bench) -> None:
    execution = beating.run(beating.put(MAIL))
    cancel(bench.context, bench.enqueuer, execution.task.id, by="ann")
    beating.heartbeat.poke()
    eventually(lambda: execution.must_stop, timeout=1.0)
    with pytest.raises(CancelRequested):
        execution.check()


def test_thread_renews_by_itself_and_survives_an_outage(
    private_mariadb: MariaDB, redis_url: str, namespace: str
) -> None:
    from tests.support.schema import create_outbox

    url = private_mariadb.url(private_mariadb.create_database())
    create_outbox(url)
    bench = Bench(
        url, redis_url, namespace=namespace, kinds=[MAIL], lease_seconds=30, renew_seconds=0.2
    )
    execution = bench.run(bench.put(MAIL), lease_seconds=10)
    bench.heartbeat.start()
    eventually(lambda: execution.lease_ends > monotonic() + 20)
    private_mariadb.kill()
    ends = execution.lease_ends
    private_mariadb.start()
    eventually(lambda: execution.lease_ends > ends + 0.5)
    assert bench.heartbeat.is_alive()
    assert execution.stop_error is None
    assert bench.heartbeat.close(10)
    bench.close()


@pytest.mark.databases("mariadb")
def test_row_that_was_locked_is_renewed_before_the_next_round(
    outbox_url: str, redis_url: str, namespace: str
) -> None:
    bench = Bench(
        outbox_url, redis_url, namespace=namespace, kinds=[MAIL], lease_seconds=60, renew_seconds=4
    )
    locked, free = (bench.run(bench.put(MAIL), lease_seconds=30) for _ in range(2))
    with bench.locked(locked.task.id):
        bench.heartbeat.start()
        eventually(lambda: free.lease_ends > monotonic() + 40)
        assert locked.lease_ends < monotonic() + 40
    # Two seconds before the next round of all.
    eventually(lambda: locked.lease_ends > monotonic() + 40, timeout=2.0)
    assert bench.heartbeat.close(10)
    bench.close()


# -- checkpoints and events ------------------------------------------------------------------


def test_checkpoint_resets_recoveries_only_when_it_went_further(bench: Bench) -> None:
    task_id = bench.put(MAIL)
    execution = bench.run(task_id)
    bench.set(task_id, recoveries=3)
    execution.checkpoint({"part": 2}, 2)
    row = bench.columns(task_id)
    assert (row["checkpoint"], row["progress"], row["recoveries"]) == ({"part": 2}, 2, 0)
    bench.set(task_id, recoveries=4)
    execution.checkpoint({"part": 1}, 1)
    row = bench.columns(task_id)
    assert (row["checkpoint"], row["progress"], row["recoveries"]) == ({"part": 1}, 2, 4)
    execution.checkpoint({"part": 2}, 2)
    assert bench.columns(task_id)["recoveries"] == 4
    execution.checkpoint({"part": 3}, 3)
    assert bench.columns(task_id)["recoveries"] == 0


def test_checkpoint_and_events_are_fenced(bench: Bench, other: Bench) -> None:
    task_id = bench.put(MAIL)
    first = bench.run(task_id)
    bench.set(task_id, state="pending", owner=None)
    second = other.run(task_id)
    with pytest.raises(LeaseLost):
        first.checkpoint({"by": "the first"}, 99)
    with pytest.raises(LeaseLost):
        first.emit("progress", {})
    assert bench.seen(LeaseLossSeen) == [LeaseLossSeen(1)]
    second.checkpoint({"by": "the second"}, 1)
    assert bench.columns(task_id)["checkpoint"] == {"by": "the second"}
    cancel(bench.context, bench.enqueuer, task_id, by="ann")
    with pytest.raises(CancelRequested):
        second.checkpoint({"by": "late"}, 2)
    assert bench.columns(task_id)["checkpoint"] == {"by": "the second"}


def test_checkpoint_past_the_lease_is_refused(bench: Bench) -> None:
    execution = bench.run(bench.put(MAIL))
    bench.expire(execution.task.id)
    with pytest.raises(LeaseLost):
        execution.checkpoint({}, 1)
    assert bench.columns(execution.task.id)["checkpoint"] is None


def test_events_are_kept_in_order(bench: Bench) -> None:
    task_id = bench.put(MAIL)
    execution = bench.run(task_id)
    for number in range(3):
        execution.emit("part_sent", {"number": number})
    events = bench.events(task_id)
    assert [(item["type"], item["data"]["number"]) for item in events] == [
        ("part_sent", 0),
        ("part_sent", 1),
        ("part_sent", 2),
    ]


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        ("completed", {}),
        ("retry", {}),
        ("Bad Type", {}),
        ("x" * 33, {}),
        ("progress", {"x": float("nan")}),
        ("progress", {"x": object()}),
        ("progress", {"x": "y" * 20_000}),
    ],
)
def test_event_that_does_not_fit_is_refused(
    bench: Bench, type_: str, data: dict[str, object]
) -> None:
    execution = bench.run(bench.put(MAIL))
    with pytest.raises(InvalidError):
        execution.emit(type_, data)
    assert bench.events(execution.task.id) == []
