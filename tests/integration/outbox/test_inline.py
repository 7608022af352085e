"""`shared.outbox.testing` runs real rows with real answers, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic
import pytest
from sqlalchemy.orm import Session

from shared.core.errors import PermanentError, TransientError
from shared.outbox import Execution, Fail, Retry, Snooze, testing
from shared.outbox.outbox import Outbox


class Say(pydantic.BaseModel):
    what: str


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    made = testing.inline_outbox(tmp_path / "tasks.db")

    @made.task("words.say", payload=Say)
    def say(execution: Execution, payload: Say) -> Any:
        match payload.what:
            case "retry":
                return Retry(60.0, "later")
            case "park":
                return Snooze(0.0, "full", resource="mouth")
            case "snooze":
                return Snooze(60.0)
            case "fail":
                return Fail("refused", "will not say that")
            case "transient":
                raise TransientError("not now")
            case "permanent":
                raise PermanentError("never", code="never")
            case "result":
                return {"said": True}
            case "chain":
                with execution.complete() as tx:
                    tx.enqueue("words.say", Say(what="result"))
                return None
            case "wrong":
                return 7
        return None

    return made


def enqueue(outbox: Outbox, what: str) -> int:
    with Session(outbox.engine) as session, session.begin():
        return outbox.enqueue(session, "words.say", Say(what=what)).id


@pytest.mark.parametrize(
    ("what", "outcome", "code"),
    [
        ("hello", "completed", None),
        ("result", "completed", None),
        ("retry", "waiting", None),
        ("snooze", "waiting", None),
        ("park", "waiting", "parked"),
        ("fail", "failed", "refused"),
        ("transient", "waiting", "transient"),
        ("permanent", "failed", "never"),
        ("wrong", "waiting", "exception"),
    ],
)
def test_each_answer_leaves_the_row_where_it_should(
    outbox: Outbox, what: str, outcome: str, code: str | None
) -> None:
    task_id = enqueue(outbox, what)
    (ran,) = testing.run_pending(outbox)
    assert (ran.task_id, ran.outcome) == (task_id, outcome)
    if code is not None:
        assert ran.error_code == code


def test_a_result_is_kept(outbox: Outbox) -> None:
    enqueue(outbox, "result")
    assert testing.run_pending(outbox)[0].result == {"said": True}


def test_follow_ups_run_too(outbox: Outbox) -> None:
    enqueue(outbox, "chain")
    assert [ran.outcome for ran in testing.run_pending(outbox)] == ["completed", "completed"]


@pytest.mark.parametrize("what", ["retry", "park"])
def test_what_waits_for_later_runs_when_asked_for(outbox: Outbox, what: str) -> None:
    enqueue(outbox, what)
    assert len(testing.run_pending(outbox)) == 1
    assert testing.run_pending(outbox) == []
    assert len(testing.run_pending(outbox, include_delayed=True)) == 1
