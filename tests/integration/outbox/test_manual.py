"""What a person may do to a task: run it again, or now. Audited, one life after another."""

from __future__ import annotations

import datetime as dt

import pytest
from sqlalchemy.orm import Session

from shared.core.errors import ConflictError, NotFoundError, ShuttingDown, TransientError
from shared.core.outcomes import Fail, Snooze
from shared.outbox.cancel import cancel, supersede
from shared.outbox.kinds import Kind
from shared.outbox.manual import dispatch_now, retry, wake
from tests.support.outbox import Bench, Things, Touch


@pytest.fixture
def kind(bench: Bench, things: Things) -> Kind[Touch]:
    made = things.kind(events=True)
    bench.context.kinds.register(made)
    return made


def _failed(bench: Bench, kind: Kind[Touch], **options: object) -> int:
    task_id = bench.put(kind, Touch(thing_id=1), **options)
    execution = bench.run(task_id)
    execution.checkpoint({"part": 9}, 9)
    bench.answers.settle(execution, Fail("bounced", "no such address"))
    return task_id


def test_failed_task_gets_a_new_life(bench: Bench, things: Things, kind: Kind[Touch]) -> None:
    things.add(1)
    task_id = _failed(bench, kind, tenant_id="acme")
    bench.set(task_id, recoveries=3, crashes=4, dispatch_failures=2)
    before = bench.columns(task_id)
    assert retry(bench.context, task_id, by="ann", reason="fixed", tenant_id="acme") == "pending"
    row = bench.columns(task_id)
    assert (row["state"], row["attempt"], row["recoveries"], row["crashes"]) == ("pending", 0, 0, 0)
    assert (row["dispatch_failures"], row["cancel_requested"], row["progress"]) == (0, 0, 0)
    assert (row["error_code"], row["error_detail"], row["finished_at"]) == (None, None, None)
    assert (row["owner"], row["lease_until"]) == (None, None)
    assert (row["fence"], row["checkpoint"]) == (before["fence"], {"part": 9})
    assert row["dispatch_id"] not in (None, before["dispatch_id"])
    assert row["due_at"] > before["due_at"]
    assert things.state(1) == "ready"
    (seen,) = things.retried
    assert (seen.id, seen.error_code, seen.attempt) == (task_id, "bounced", 1)
    (audited,) = bench.audit(task_id)
    assert (audited["action"], audited["actor"], audited["reason"]) == ("retry", "ann", "fixed")
    assert (audited["state_before"], audited["state_after"]) == ("failed", "pending")
    assert bench.event_types(task_id) == ["pending", "failed", "manual_retry"]
    # Its end was kept when it failed, and is not kept twice.
    assert [item["outcome"] for item in bench.attempts(task_id)] == ["failed"]
    execution = bench.run(task_id)
    assert (execution.fence, execution.task.checkpoint) == (before["fence"] + 1, {"part": 9})
    bench.answers.settle(execution, TransientError())
    assert bench.columns(task_id)["attempt"] == 1


def test_end_that_was_kept_nowhere_is_kept_by_the_retry(
    bench: Bench, things: Things, kind: Kind[Touch]
) -> None:
    things.add(1)
    task_id = bench.put(kind, Touch(thing_id=1))
    cancel(bench.context, bench.enqueuer, task_id, by="ann", reason="wrong")
    ended_at = bench.columns(task_id)["finished_at"]
    retry(bench.context, task_id, by="bob")
    (kept,) = bench.attempts(task_id)
    assert (kept["outcome"], kept["error_code"]) == ("cancelled", "cancelled")
    assert (kept["error_detail"], kept["ended_at"]) == ("ann: wrong", ended_at)


def test_completed_task_runs_again_only_by_force(
    bench: Bench, things: Things, kind: Kind[Touch]
) -> None:
    things.add(1)
    task_id = bench.put(kind, Touch(thing_id=1))
    with bench.run(task_id).complete() as tx:
        tx.result = {"x": 1}
    with pytest.raises(ConflictError, match="force"):
        retry(bench.context, task_id, by="ann")
    assert bench.columns(task_id)["state"] == "completed"
    retry(bench.context, task_id, by="ann", force=True)
    row = bench.columns(task_id)
    assert (row["state"], row["attempt"], row["result"]) == ("pending", 0, None)
    assert [item["outcome"] for item in bench.attempts(task_id)] == ["completed"]
    assert [item["action"] for item in bench.audit(task_id)] == ["retry_forced"]


@pytest.mark.parametrize("state", ["pending", "scheduled", "blocked", "dispatched", "running"])
def test_task_that_has_not_ended_is_a_conflict(
    bench: Bench, things: Things, kind: Kind[Touch], state: str
) -> None:
    task_id = bench.put(kind, Touch(thing_id=things.add(1)))
    bench.set(task_id, state=state)
    with pytest.raises(ConflictError, match="not ended"):
        retry(bench.context, task_id, by="ann", force=True)
    assert things.retried == []


def test_superseded_task_is_a_conflict(bench: Bench, things: Things, kind: Kind[Touch]) -> None:
    task_id = bench.put(kind, Touch(thing_id=things.add(1)))
    with Session(bench.engine) as session, session.begin():
        supersede(bench.context, bench.enqueuer, session, [task_id])
    with pytest.raises(ConflictError) as caught:
        retry(bench.context, task_id, by="ann")
    assert caught.value.code == "superseded"


def test_dedupe_key_held_by_another_is_a_conflict(
    bench: Bench, things: Things, kind: Kind[Touch]
) -> None:
    things.add(1)
    first = _failed(bench, kind, dedupe_key="k")
    bench.put(kind, Touch(thing_id=1), dedupe_key="k")
    before = bench.columns(first)
    with pytest.raises(ConflictError) as caught:
        retry(bench.context, first, by="ann")
    assert caught.value.code == "dedupe_conflict"
    assert bench.columns(first) == before
    # The hook's work went with it.
    assert things.state(1) == "task failed"
    assert bench.audit(first) == []


def test_kind_may_refuse(bench: Bench, things: Things, kind: Kind[Touch]) -> None:
    things.add(1)
    task_id = _failed(bench, kind)
    things.fail_on_retry = ConflictError("a newer version is stored")
    with pytest.raises(ConflictError, match="newer"):
        retry(bench.context, task_id, by="ann")
    assert bench.columns(task_id)["state"] == "failed"
    assert bench.event_types(task_id) == ["pending", "failed"]


def test_unknown_kind_and_unknown_task_are_refused(
    bench: Bench, other: Bench, things: Things, kind: Kind[Touch]
) -> None:
    things.add(1)
    task_id = _failed(bench, kind, tenant_id="acme")
    with pytest.raises(ConflictError) as caught:
        retry(other.context, task_id, by="ann")
    assert caught.value.code == "kind_unknown"
    with pytest.raises(NotFoundError):
        retry(bench.context, task_id, by="eve", tenant_id="evil")
    with pytest.raises(NotFoundError):
        retry(bench.context, task_id + 1, by="ann")


def test_old_message_finds_nothing_after_a_retry(bench: Bench, kind: Kind[Touch]) -> None:
    """An old execution that comes back after the retry meets another dispatch and another fence."""
    task_id = bench.put(kind, Touch(thing_id=1))
    first = bench.run(task_id)
    bench.set(task_id, state="failed")
    retry(bench.context, task_id, by="ann")
    bench.answers.settle(first, ShuttingDown())
    assert bench.columns(task_id)["state"] == "pending"
    assert bench.columns(task_id)["dispatch_id"] != first.dispatch_id


def test_scheduled_task_is_made_due_by_hand(bench: Bench, kind: Kind[Touch]) -> None:
    task_id = bench.put(kind, Touch(thing_id=1), delay_seconds=3600)
    assert dispatch_now(bench.context, task_id, by="ann", reason="hurry") == "pending"
    row = bench.columns(task_id)
    assert row["state"] == "pending"
    assert row["due_at"] <= bench.read(task_id).now
    assert [item["action"] for item in bench.audit(task_id)] == ["dispatch_now"]
    assert bench.event_types(task_id) == ["scheduled", "pending"]
    with pytest.raises(ConflictError):
        dispatch_now(bench.context, task_id, by="ann")


def test_event_wakes_the_snooze_that_waits_for_it(bench: Bench, kind: Kind[Touch]) -> None:
    task_id = bench.put(kind, Touch(thing_id=1))
    execution = bench.run(task_id)
    with Session(bench.engine) as session, session.begin():
        assert not wake(bench.context, session, task_id)
    bench.answers.settle(execution, Snooze(3600, "waits for a person"))
    with Session(bench.engine) as session, session.begin():
        assert wake(bench.context, session, task_id)
    row = bench.columns(task_id)
    assert (row["state"], row["attempt"]) == ("pending", 0)
    assert bench.read(task_id).now - row["due_at"] < dt.timedelta(seconds=30)
