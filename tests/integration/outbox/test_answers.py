"""Every way out of `running` but completion, on each database."""

from __future__ import annotations

import datetime as dt

import pytest
import sqlalchemy as sa

from shared.core.clock import monotonic
from shared.core.errors import (
    CancelRequested,
    LeaseLost,
    PermanentError,
    ShuttingDown,
    SupersededError,
    ThrottledError,
    TimeLimitExceeded,
    TransientError,
)
from shared.core.outcomes import Fail, Retry, Snooze
from shared.outbox import answers
from shared.outbox.cancel import cancel
from shared.outbox.execution import CLAIMED, ENDED
from shared.outbox.kinds import Kind
from shared.outbox.policy import RetryPolicy
from shared.outbox.schema import lanes
from shared.outbox.signals import Ended, LeaseLossSeen
from shared.outbox.states import State
from shared.outbox.stopping import Interrupted
from tests.support.outbox import Bench, Things, Thread, Touch

PLAIN = RetryPolicy(base_seconds=2, factor=2, jitter="none", max_attempts=4)


def _kind(bench: Bench, **options: object) -> Kind[Touch]:
    options.setdefault("retry", PLAIN)
    kind = Kind(name="mail.send", payload=Touch, **options)
    bench.context.kinds.register(kind)
    return kind


def _waits(bench: Bench, task_id: int) -> float:
    row = bench.columns(task_id)
    return (row["due_at"] - bench.read(task_id).now).total_seconds()


def test_retries_wait_exactly_two_four_eight_and_then_fail(bench: Bench) -> None:
    task_id = bench.put(_kind(bench))
    for attempt, seconds in ((1, 2), (2, 4), (3, 8)):
        bench.answers.settle(bench.run(task_id), TransientError("not yet"))
        row = bench.columns(task_id)
        assert (row["state"], row["attempt"]) == ("scheduled", attempt)
        assert (row["error_code"], row["owner"], row["lease_until"]) == ("transient", None, None)
        written = bench.events(task_id)[-1]
        assert written["type"] == "retry"
        assert written["data"]["wait_seconds"] == seconds
        assert seconds - 1 < _waits(bench, task_id) <= seconds
    bench.answers.settle(bench.run(task_id), TransientError("not yet"))
    row = bench.columns(task_id)
    assert (row["state"], row["attempt"], row["error_code"]) == ("failed", 4, "transient")
    assert "gave up after 4 attempts" in row["error_detail"]
    assert [item["outcome"] for item in bench.attempts(task_id)] == ["retry"] * 3 + ["failed"]
    assert [item["attempt"] for item in bench.attempts(task_id)] == [1, 2, 3, 4]
    assert [signal.final for signal in bench.seen(Ended)] == [False, False, False, True]
    assert len(bench.context.executions) == 0


def test_retry_says_its_own_wait_and_reason(bench: Bench) -> None:
    task_id = bench.put(_kind(bench))
    bench.answers.settle(bench.run(task_id), Retry(after_seconds=100, reason="the moon"))
    row = bench.columns(task_id)
    assert (row["error_code"], row["error_detail"]) == ("retry", "the moon")
    assert 98 < _waits(bench, task_id) <= 100


def test_throttled_waits_as_long_as_the_other_side_asked(bench: Bench) -> None:
    task_id = bench.put(_kind(bench))
    bench.answers.settle(bench.run(task_id), ThrottledError("slow down", retry_after_seconds=60))
    assert 58 < _waits(bench, task_id) <= 60
    assert bench.columns(task_id)["attempt"] == 1


def test_snooze_counts_no_attempt_and_keeps_the_order(bench: Bench) -> None:
    task_id = bench.put(_kind(bench))
    before = bench.columns(task_id)
    for _ in range(6):
        bench.answers.settle(bench.run(task_id), Snooze(30, "waits for its turn"))
    row = bench.columns(task_id)
    assert (row["state"], row["attempt"]) == ("scheduled", 0)
    assert row["order_at"] == before["order_at"]
    assert (row["error_code"], row["error_detail"]) == ("snoozed", "waits for its turn")
    assert 28 < _waits(bench, task_id) <= 30
    assert bench.attempts(task_id) == []


def test_snooze_whose_event_has_come_is_pending_at_once(bench: Bench) -> None:
    task_id = bench.put(_kind(bench))
    looks: list[bool] = []

    def ready(session: object) -> bool:
        looks.append(True)
        return True

    bench.answers.settle(bench.run(task_id), Snooze(3600, "waits", ready=ready))
    row = bench.columns(task_id)
    assert (row["state"], row["attempt"], looks) == ("pending", 0, [True])
    assert _waits(bench, task_id) <= 0
    bench.answers.settle(bench.run(task_id), Snooze(3600, "waits", ready=lambda _: False))
    assert bench.columns(task_id)["state"] == "scheduled"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Fail("no_such_address", "bounced"), "no_such_address"),
        (PermanentError("never"), "permanent"),
        (PermanentError("never", code="gone"), "gone"),
    ],
)
def test_permanent_answers_fail_at_once(bench: Bench, answer: object, code: str) -> None:
    task_id = bench.put(_kind(bench))
    execution = bench.run(task_id)
    bench.answers.settle(execution, answer)  # type: ignore[arg-type]
    row = bench.columns(task_id)
    assert (row["state"], row["attempt"], row["error_code"]) == ("failed", 1, code)
    assert row["finished_at"] is not None
    assert row["lease_until"] is None
    assert [item["outcome"] for item in bench.attempts(task_id)] == ["failed"]
    assert bench.event_types(task_id) == ["failed"]
    assert execution.phase == ENDED


def test_superseded_ends_cancelled(bench: Bench) -> None:
    task_id = bench.put(_kind(bench))
    bench.answers.settle(bench.run(task_id), SupersededError("a newer one won"))
    row = bench.columns(task_id)
    assert (row["state"], row["error_code"], row["attempt"]) == ("cancelled", "superseded", 1)


def test_surprises_are_retried_and_keep_odd_texts(bench: Bench) -> None:
    task_id = bench.put(_kind(bench))
    bench.answers.settle(bench.run(task_id), ValueError("bad \ud800 \x00 text 漢 " + "x" * 9000))
    row = bench.columns(task_id)
    assert (row["state"], row["error_code"]) == ("scheduled", "exception")
    assert row["error_detail"].startswith("ValueError: bad ? ")
    assert "漢" in row["error_detail"]


def test_fail_code_that_the_column_cannot_hold_is_cleaned(bench: Bench) -> None:
    task_id = bench.put(_kind(bench))
    bench.answers.settle(bench.run(task_id), Fail("läuft nicht " + "x" * 100))
    row = bench.columns(task_id)
    assert row["state"] == "failed"
    assert row["error_code"].startswith("l?uft nicht")


def test_time_limit_is_a_retry_and_at_the_last_attempt_failed_timeout(bench: Bench) -> None:
    kind = _kind(bench, retry=RetryPolicy(jitter="none", max_attempts=2))
    task_id = bench.put(kind)
    execution = bench.run(task_id)
    execution.stop(TimeLimitExceeded())
    bench.answers.settle(execution, Interrupted())
    row = bench.columns(task_id)
    assert (row["state"], row["attempt"], row["error_code"]) == ("scheduled", 1, "timeout")
    execution = bench.run(task_id)
    execution.stop(TimeLimitExceeded())
    bench.answers.settle(execution, Interrupted())
    row = bench.columns(task_id)
    assert (row["state"], row["attempt"], row["error_code"]) == ("failed", 2, "timeout")


def test_shutdown_gives_back_without_an_attempt_and_keeps_the_checkpoint(bench: Bench) -> None:
    task_id = bench.put(_kind(bench, events=True))
    order_at = bench.columns(task_id)["order_at"]
    execution = bench.run(task_id)
    execution.checkpoint({"part": 3}, 3)
    execution.stop(ShuttingDown())
    bench.answers.settle(execution, ShuttingDown("going away"))
    row = bench.columns(task_id)
    assert (row["state"], row["attempt"], row["recoveries"]) == ("pending", 0, 0)
    assert (row["checkpoint"], row["progress"]) == ({"part": 3}, 3)
    assert row["order_at"] == order_at
    assert _waits(bench, task_id) <= 0
    assert row["due_at"] >= order_at
    assert bench.attempts(task_id) == []
    assert bench.event_types(task_id) == ["pending", "given_back"]
    assert bench.run(task_id).task.checkpoint == {"part": 3}


def test_older_row_made_pending_lowers_its_lane(bench: Bench) -> None:
    task_id = bench.put(_kind(bench), tenant_id="acme")
    late = bench.read(task_id).now + dt.timedelta(hours=1)
    with bench.engine.begin() as connection:
        connection.execute(
            sa.insert(lanes).values(
                queue="mail",
                region="",
                tenant_id="acme",
                priority=1,
                watermark=late,
                touched_at=late,
                version=4,
            )
        )
    bench.answers.settle(bench.run(task_id), ShuttingDown())
    with bench.engine.connect() as connection:
        lane = connection.execute(sa.select(lanes)).mappings().one()
    assert lane["watermark"] == bench.columns(task_id)["order_at"]
    assert lane["version"] == 5


@pytest.mark.parametrize(
    "answer",
    [
        TransientError("again"),
        Snooze(10),
        Fail("bad"),
        ShuttingDown(),
        SupersededError(),
        CancelRequested(),
    ],
)
def test_cancel_sends_every_way_out_to_cancelled(bench: Bench, answer: object) -> None:
    task_id = bench.put(_kind(bench))
    execution = bench.run(task_id)
    cancel(bench.context, bench.enqueuer, task_id, by="ann", reason="wrong file")
    bench.answers.settle(execution, answer)  # type: ignore[arg-type]
    row = bench.columns(task_id)
    assert (row["state"], row["error_code"]) == ("cancelled", "cancelled")
    assert row["error_detail"] == "ann: wrong file"
    assert bench.event_types(task_id) == ["cancel_requested", "cancelled"]


def test_lost_lease_writes_nothing(bench: Bench) -> None:
    task_id = bench.put(_kind(bench))
    execution = bench.run(task_id)
    bench.expire(task_id)
    before = bench.columns(task_id)
    bench.answers.settle(execution, Fail("bad"))
    assert bench.columns(task_id) == before
    assert bench.attempts(task_id) == []
    assert bench.events(task_id) == []
    assert bench.seen(LeaseLossSeen) == [LeaseLossSeen(1)]
    assert len(bench.context.executions) == 0


def test_task_of_another_owner_is_left_alone(bench: Bench, other: Bench) -> None:
    task_id = bench.put(_kind(bench))
    first = bench.run(task_id)
    bench.set(task_id, state="pending", owner=None, lease_until=None)
    second = other.run(task_id)
    bench.answers.settle(first, PermanentError("from the dead"))
    row = bench.columns(task_id)
    assert (row["state"], row["owner"], row["fence"]) == ("running", second.owner, second.fence)
    bench.answers.settle(bench.run(bench.put("mail.send")), LeaseLost())
    assert len(bench.context.executions) == 0


def test_lost_lease_outranks_a_retry_that_the_handler_answered(bench: Bench) -> None:
    task_id = bench.put(_kind(bench))
    execution = bench.run(task_id)
    execution.stop(LeaseLost())
    bench.answers.settle(execution, Retry())
    assert bench.columns(task_id)["state"] == "running"
    assert bench.seen(LeaseLossSeen) == []  # who stopped it has told already


def test_give_up_after_counts_from_the_birth_of_this_life(bench: Bench) -> None:
    kind = _kind(bench, retry=RetryPolicy(jitter="none", give_up_after_seconds=3600))
    task_id = bench.put(kind)
    old = bench.read(task_id).now - dt.timedelta(hours=2)
    bench.set(task_id, created_at=old)
    bench.answers.settle(bench.run(task_id), TransientError())
    assert bench.columns(task_id)["state"] == "scheduled"
    bench.set(task_id, order_at=old)
    bench.answers.settle(bench.run(task_id), TransientError())
    assert bench.columns(task_id)["state"] == "failed"


def test_unknown_kind_can_be_snoozed_and_failed(bench: Bench, other: Bench) -> None:
    task_id = bench.put(_kind(bench))
    other.answers.settle(other.run(task_id), Snooze(30, "no handler here"))
    assert bench.columns(task_id)["state"] == "scheduled"


def test_group_gives_back_what_no_thread_has_started(bench: Bench, other: Bench) -> None:
    kind = _kind(bench, events=True)
    ids = [bench.put(kind) for _ in range(5)]
    claimed = [bench.run(task_id, phase=CLAIMED) for task_id in ids[:3]]
    started = bench.run(ids[3])
    lost = bench.run(ids[4], phase=CLAIMED)
    bench.set(ids[4], state="pending", owner=None, lease_until=None)
    cancel(other.context, other.enqueuer, ids[1], by="ann")
    bench.answers.give_back([*claimed, started, lost])
    states = [bench.columns(task_id)["state"] for task_id in ids]
    assert states == ["pending", "cancelled", "pending", "running", "pending"]
    assert [bench.columns(task_id)["attempt"] for task_id in ids] == [0, 1, 0, 0, 0]
    assert bench.event_types(ids[0]) == ["pending", "given_back"]
    assert bench.context.executions.snapshot() == [started]
    assert bench.context.executions.start(ids[0], claimed[0].dispatch_id, 1) is None
    assert [item.outcome for item in claimed] == ["given_back", "cancelled", "given_back"]


def test_answer_after_completion_changes_nothing(bench: Bench) -> None:
    task_id = bench.put(_kind(bench))
    execution = bench.run(task_id)
    with execution.complete():
        pass
    bench.answers.settle(execution, RuntimeError("unlink failed"))
    assert bench.columns(task_id)["state"] == "completed"
    assert execution.outcome == "completed"
    assert len(bench.context.executions) == 0


def test_end_calls_the_hook_in_its_transaction(bench: Bench, things: Things) -> None:
    kind = things.kind()
    bench.context.kinds.register(kind)
    task_id = bench.put(kind, Touch(thing_id=things.add(7)), tenant_id="acme")
    bench.answers.settle(bench.run(task_id), Fail("bounced", "no such address"))
    assert things.state(7) == "task failed"
    ((task, outcome),) = things.ended
    assert (task.id, task.tenant_id, task.payload) == (task_id, "acme", Touch(thing_id=7))
    assert (task.attempt, task.error_code, outcome) == (1, "bounced", "failed")


@pytest.mark.databases("mariadb")
def test_answer_waits_for_a_locked_row(bench: Bench) -> None:
    task_id = bench.put(_kind(bench))
    execution = bench.run(task_id)
    with bench.locked(task_id):
        thread = Thread(lambda: bench.answers.settle(execution, Fail("bad")))
        bench.await_lock_wait()
    thread.join_answer()
    assert bench.columns(task_id)["state"] == "failed"


@pytest.mark.databases("mariadb")
def test_answer_is_written_again_after_its_connection_was_killed(bench: Bench) -> None:
    task_id = bench.put(_kind(bench))
    execution = bench.run(task_id)
    with bench.locked(task_id):
        thread = Thread(lambda: bench.answers.settle(execution, Fail("bad")))
        bench.kill_connection(bench.await_lock_wait())
        bench.await_lock_wait()
    thread.join_answer()
    row = bench.columns(task_id)
    assert (row["state"], row["attempt"]) == ("failed", 1)
    assert len(bench.attempts(task_id)) == 1


@pytest.mark.databases("mariadb")
def test_answer_that_cannot_be_written_is_left_to_the_scan_at_the_lease_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = bench.put(_kind(bench))
    execution = bench.run(task_id)
    execution.lease_ends = monotonic() + 0.3
    bench.set(task_id, error_detail="x")
    monkeypatch.setattr(answers, "FIRST_WAIT_SECONDS", 0.01)
    with bench.engine.connect() as connection:
        connection.exec_driver_sql("RENAME TABLE task_attempts TO task_attempts_away")
        bench.answers.settle(execution, Fail("bad"))
        connection.exec_driver_sql("RENAME TABLE task_attempts_away TO task_attempts")
    assert bench.read(task_id).state is State.RUNNING
    assert len(bench.context.executions) == 0
    assert bench.seen(LeaseLossSeen) == [LeaseLossSeen(1)]


def test_mistake_in_the_question_of_a_snooze_does_not_hold_the_task(bench: Bench) -> None:
    def ready(session: object) -> bool:
        raise LookupError("a mistake")

    task_id = bench.put(_kind(bench))
    bench.answers.settle(bench.run(task_id), Snooze(30, "waits", ready=ready))
    assert bench.columns(task_id)["state"] == "scheduled"
