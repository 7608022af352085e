"""What a database refuses for what it says costs the task its answer, never a thread or a lease."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest
from sqlalchemy.orm import Session

from shared.core.clock import monotonic
from shared.core.errors import InvalidError, PermanentError, ThrottledError
from shared.core.outcomes import Fail, Retry, Snooze
from shared.outbox.cancel import cancel
from shared.outbox.execution import ENDED, SETTLING, Execution
from shared.outbox.finisher import Finisher
from shared.outbox.kinds import Kind
from shared.outbox.records import MAX_DEPTH
from tests.support.eventually import eventually
from tests.support.outbox import Bench, Things, Touch

MAIL = Kind(name="mail.send", payload=Touch)


@pytest.mark.parametrize(
    ("answer", "longest"),
    [
        (Retry(float("inf")), dt.timedelta(days=3660)),
        (Retry(1e300), dt.timedelta(days=3660)),
        (Snooze(1e13, "a long while"), dt.timedelta(days=3660)),
        (ThrottledError(retry_after_seconds=1e15), dt.timedelta(days=1)),
        (Retry(float("nan")), dt.timedelta(0)),
        (Retry(-5), dt.timedelta(0)),
    ],
    ids=["infinite", "huge", "snooze", "throttled", "nan", "negative"],
)
def test_a_wait_that_no_column_holds_is_cut(
    bench: Bench, answer: Any, longest: dt.timedelta
) -> None:
    bench.context.kinds.register(MAIL)
    execution = bench.run(bench.put(MAIL))
    bench.answers.settle(execution, answer)
    row = bench.columns(execution.task.id)
    now = bench.read(execution.task.id).now
    assert row["state"] == "scheduled"
    assert longest - dt.timedelta(minutes=1) < row["due_at"] - now <= longest


def test_fail_with_a_code_that_is_no_text_fails(bench: Bench) -> None:
    bench.context.kinds.register(MAIL)
    execution = bench.run(bench.put(MAIL))
    bench.answers.settle(execution, Fail(550, 5.0))  # type: ignore[arg-type]
    row = bench.columns(execution.task.id)
    assert (row["state"], row["error_code"], row["error_detail"]) == ("failed", "550", "5.0")


def test_an_answer_that_is_refused_again_and_again_becomes_a_retry(bench: Bench) -> None:
    bench.context.kinds.register(MAIL)
    execution = bench.run(bench.put(MAIL))
    # The heartbeat of a living process renews it for as long as the execution is held.
    execution.lease_ends = monotonic() + 3600
    bench.answers.settle(execution, Retry("soon"))  # type: ignore[arg-type]
    row = bench.columns(execution.task.id)
    assert (row["state"], row["attempt"]) == ("scheduled", 1)
    assert row["error_code"] == "answer_unwritable"
    assert execution.phase == ENDED


def test_an_upgrade_with_a_mistake_does_not_keep_the_task_from_ending(bench: Bench) -> None:
    def broken(body: dict[str, Any]) -> dict[str, Any]:
        return body["text"].lower()  # type: ignore[no-any-return]

    bench.context.kinds.register(MAIL)
    task_id = bench.put(MAIL)
    newer = Kind(
        name=MAIL.name, payload=Touch, version=2, upgrades={1: lambda body: broken({"text": None})}
    )
    with pytest.raises(PermanentError, match="cannot be read"):
        newer.load('{"v":1,"p":{}}')
    bench.context.kinds._kinds[MAIL.name] = newer
    execution = bench.run(task_id)
    execution.lease_ends = monotonic() + 3600
    bench.answers.settle(execution, Fail("bad"))
    row = bench.columns(task_id)
    assert (row["state"], row["error_code"]) == ("failed", "bad")


def _nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth - 1):
        value = [value]
    return {"x": value}


@pytest.fixture
def finisher(bench: Bench) -> Iterator[Finisher]:
    bench.context.kinds.register(MAIL)
    made = Finisher(bench.context, bench.answers.settle)
    made.start()
    yield made
    assert made.close(20)


def _submit(bench: Bench, finisher: Finisher, *results: dict[str, Any] | None) -> list[Execution]:
    executions = [bench.run(bench.put(MAIL), phase=SETTLING) for _ in results]
    for execution, result in zip(executions, results, strict=True):
        execution.result = result
        finisher.submit(execution)
    return executions


def test_a_result_is_kept_as_deep_as_databases_go_and_else_dropped(
    bench: Bench, finisher: Finisher
) -> None:
    deepest = _nested(MAX_DEPTH)
    results = (deepest, _nested(MAX_DEPTH + 1), {"x": "\ud800"}, {"x": '\x00"[[{ä😀'})
    executions = _submit(bench, finisher, *results)
    eventually(lambda: all(execution.phase == ENDED for execution in executions), 20)
    rows = [bench.columns(execution.task.id) for execution in executions]
    assert [row["state"] for row in rows] == ["completed"] * 4
    assert [row["result"] for row in rows] == [deepest, None, None, {"x": '\x00"[[{ä😀'}]


def test_a_result_that_the_database_refuses_harms_no_neighbour(
    bench: Bench, finisher: Finisher
) -> None:
    refuse = (
        "CREATE TRIGGER refuse BEFORE UPDATE ON tasks FOR EACH ROW {} NEW.result LIKE '%poison%' {}"
    )
    words = ("WHEN", "BEGIN SELECT RAISE(ABORT, 'no'); END")
    if bench.context.db.dialect.name == "mysql":
        words = ("BEGIN IF", "THEN SIGNAL SQLSTATE '45000'; END IF; END")
    with bench.engine.begin() as connection:
        connection.exec_driver_sql(refuse.format(*words).replace("%", "%%"))
    executions = _submit(bench, finisher, {"n": 1}, {"n": "poison"}, None, {"n": 2})
    eventually(lambda: all(execution.phase == ENDED for execution in executions), 20)
    rows = [bench.columns(execution.task.id) for execution in executions]
    assert [row["state"] for row in rows] == ["completed"] * 4
    assert [row["result"] for row in rows] == [{"n": 1}, None, None, {"n": 2}]
    assert [execution.outcome for execution in executions] == ["completed"] * 4


@pytest.mark.databases("mariadb")
def test_a_row_that_is_locked_for_long_does_not_hold_up_other_completions(
    bench: Bench, finisher: Finisher
) -> None:
    task_id = bench.put(MAIL)
    locked = bench.run(task_id, phase=SETTLING)
    with bench.locked(task_id):
        finisher.submit(locked)
        for _ in range(5):
            (other,) = _submit(bench, finisher, None)
            eventually(lambda other=other: other.phase == ENDED, 4)
        assert locked.phase == SETTLING
    eventually(lambda: locked.phase == ENDED, 20)
    assert bench.columns(task_id)["state"] == "completed"


@pytest.mark.databases("mariadb")
def test_a_cancelled_one_with_locked_domain_rows_does_not_hold_up_other_completions(
    bench: Bench, things: Things, finisher: Finisher
) -> None:
    bench.context.kinds.register(things.kind("mail.thing"))
    task_id = bench.put("mail.thing", Touch(thing_id=things.add(7)))
    cancelled = bench.run(task_id, phase=SETTLING)
    cancel(bench.context, bench.enqueuer, task_id, by="ann")
    with Session(bench.engine) as session, session.begin():
        things.lock(session, Touch(thing_id=7))
        finisher.submit(cancelled)
        bench.await_lock_wait()
        (other,) = _submit(bench, finisher, None)
        eventually(lambda: other.phase == ENDED, 4)
    eventually(lambda: cancelled.phase == ENDED, 20)
    assert bench.columns(task_id)["state"] == "cancelled"
    assert things.state(7) == "task cancelled"


def test_a_payload_is_measured_in_bytes_and_in_depth(bench: Bench) -> None:
    class Free(pydantic.BaseModel):
        x: Any

    kind = Kind(name="mail.free", payload=Free)
    bench.context.kinds.register(kind)
    deepest = _nested(MAX_DEPTH)
    task_id = bench.put(kind, deepest)
    assert kind.load(bench.columns(task_id)["payload"]) == Free(**deepest)
    for wrong in (_nested(MAX_DEPTH + 1), {"x": "😀" * 20_000}, {"x": "\ud800"}):
        with pytest.raises(InvalidError, match="payload of"):
            bench.put(kind, wrong)
    execution = bench.run(task_id)
    with pytest.raises(InvalidError, match="checkpoint"):
        execution.checkpoint(_nested(MAX_DEPTH + 1), 1)
