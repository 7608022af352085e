"""What is over for long enough goes, and nothing that somebody may still need."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa

from shared.outbox.housekeeping import Housekeeping
from shared.outbox.schema import task_attempts, task_audit, task_events
from shared.outbox.window import Place
from tests.support.filling import QUEUE, add, clock, states
from tests.support.outbox import Bench

DAY = 86400.0
PLACE = Place(QUEUE, "")


def _ended(bench: Bench, state: str, days: float, count: int = 1, **values: object) -> list[int]:
    finished = clock(bench) - dt.timedelta(days=days)
    return add(
        bench, count, state=state, age_seconds=days * DAY + 60, finished_at=finished, **values
    )


def _record(bench: Bench, task_id: int, days: float) -> None:
    when = clock(bench) - dt.timedelta(days=days)
    with bench.engine.begin() as connection:
        connection.execute(
            sa.insert(task_events).values(task_id=task_id, type="running", data={}, created_at=when)
        )
        connection.execute(
            sa.insert(task_attempts).values(
                task_id=task_id, attempt=1, fence=1, outcome="retry", ended_at=when
            )
        )
        connection.execute(
            sa.insert(task_audit).values(
                task_id=task_id, action="retry", actor="ann", created_at=when
            )
        )


def _tidy(bench: Bench) -> int:
    return Housekeeping(bench.context, bench.context.db.line()).run_once([PLACE])


def test_ended_tasks_go_after_their_time_with_what_is_kept_beside_them(bench: Bench) -> None:
    (old,) = _ended(bench, "completed", 8)
    (young,) = _ended(bench, "completed", 6)
    _record(bench, old, 1)
    _record(bench, young, 1)
    _ended(bench, "cancelled", 31)
    _ended(bench, "cancelled", 29)
    _ended(bench, "failed", 400)
    add(bench, 2, age_seconds=400 * DAY)

    assert _tidy(bench) == 2

    assert states(bench) == {"completed": 1, "cancelled": 1, "failed": 1, "pending": 2}
    assert bench.events(old) == bench.attempts(old) == []
    assert len(bench.audit(old)) == 1
    assert len(bench.events(young)) == len(bench.attempts(young)) == 1


def test_a_task_that_was_due_long_ago_and_ended_lately_stays_and_hides_nothing(
    bench: Bench,
) -> None:
    lately = clock(bench) - dt.timedelta(days=1)
    add(bench, 250, state="completed", age_seconds=20 * DAY, finished_at=lately)
    _ended(bench, "completed", 10, 3)
    assert _tidy(bench) == 3
    assert states(bench) == {"completed": 250}


def test_an_idempotency_key_answers_for_its_whole_time(
    outbox_url: str, redis_url: str, namespace: str
) -> None:
    bench = Bench(outbox_url, redis_url, namespace=namespace, retain_completed_seconds=3600)
    _ended(bench, "completed", 2, idempotency_key="k1")
    _ended(bench, "completed", 9, idempotency_key="k2")
    assert _tidy(bench) == 1
    assert states(bench) == {"completed": 1}
    bench.close()


def test_old_events_and_audit_rows_go(bench: Bench) -> None:
    (task_id,) = add(bench)
    _record(bench, task_id, 400)
    _record(bench, task_id, 100)
    _record(bench, task_id, 5)
    _tidy(bench)
    assert len(bench.events(task_id)) == 1
    assert len(bench.audit(task_id)) == 2


def test_zero_keeps_everything(outbox_url: str, redis_url: str, namespace: str) -> None:
    bench = Bench(
        outbox_url,
        redis_url,
        namespace=namespace,
        retain_completed_seconds=0,
        retain_cancelled_seconds=0,
        retain_events_seconds=0,
        retain_audit_seconds=0,
    )
    (task_id,) = _ended(bench, "completed", 1000)
    _record(bench, task_id, 1000)
    assert _tidy(bench) == 0
    bench.close()
