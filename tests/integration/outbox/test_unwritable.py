"""What a database refuses for what it says costs the task its answer, never a thread or a lease."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from shared.core.clock import monotonic
from shared.core.errors import PermanentError, ThrottledError
from shared.core.outcomes import Fail, Retry, Snooze
from shared.outbox.execution import ENDED
from shared.outbox.kinds import Kind
from tests.support.outbox import Bench, Touch

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
