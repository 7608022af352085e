"""Running tasks inline in a test: real rows, claims, fences and answers, no server and no thread.

outbox = testing.inline_outbox(tmp_path / "tasks.db")
with Session(outbox.context.db.engine) as session, session.begin():
outbox.enqueue(session, WELCOME, Welcome(user_id=1))
assert [ran.outcome for ran in testing.run_pending(outbox)] == ["completed"]
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from shared.core.ids import new_id
from shared.outbox.claim import Claimer
from shared.outbox.finisher import Finisher
from shared.outbox.messages import decode, encode, queue_key
from shared.outbox.outbox import Outbox
from shared.outbox.perform import Performer
from shared.outbox.settings import OutboxSettings
from shared.outbox.statements import inline as statements

#: Tasks that one call runs at most: a kind that enqueues itself would never end otherwise.
MAX_TASKS = 1000


@dataclass(frozen=True, slots=True)
class Ran:
    """One execution: the task, its state afterwards (`waiting`: it comes back), its error."""

    task_id: int
    kind: str
    outcome: str
    error_code: str | None
    result: dict[str, Any] | None


def inline_outbox(path: Path, *, settings: OutboxSettings | None = None) -> Outbox:
    """Return an outbox on a SQLite file whose tasks wait for `run_pending`."""
    outbox = Outbox(
        sa.create_engine(f"sqlite:///{path}"),
        "redis://127.0.0.1:1/0",
        settings=settings,
        inline=True,
    )
    outbox.create_tables()
    return outbox


def run_pending(outbox: Outbox, *, include_delayed: bool = False) -> list[Ran]:
    """Run what is due, one after another in the calling thread, follow-ups too; returns what ran.

    `include_delayed` also runs, once each, what waits for later: retries, snoozes, delays, and what
    is parked on a resource.
    """
    context = outbox.context
    finisher = Finisher(context, outbox.answers.settle)
    performer = Performer(
        context,
        finisher=_Now(finisher),
        settle=outbox.answers.settle,
        measure=lambda _queue, _seconds: None,
    )
    ran: list[Ran] = []
    if include_delayed:
        with context.db.transaction() as cursor:
            cursor.execute(context.db.dialect.sql(statements.MAKE_DUE))
            cursor.execute(context.db.dialect.sql(statements.WAKE_PARKED))
    while len(ran) < MAX_TASKS:
        found = _dispatch_next(outbox)
        if found is None:
            return ran
        queue_name, task_id, dispatch_id = found
        claimer = Claimer(context, outbox.broker.ports, queue_name)
        try:
            message = decode(encode(queue_name, task_id, dispatch_id), queue_name)
            claimer.claim([message], threading.Event())
        finally:
            claimer.close()
        performer.perform(queue_name.partition(".")[0], task_id, dispatch_id)
        ran.append(_look(outbox, task_id))
    raise RuntimeError(f"more than {MAX_TASKS} tasks ran: does a kind enqueue itself for ever?")


class _Now:
    """A finisher that finishes at once."""

    def __init__(self, finisher: Finisher) -> None:
        self._finisher = finisher

    def submit(self, execution: Any) -> None:
        """Complete it now."""
        self._finisher.finish_now(execution)


def _dispatch_next(outbox: Outbox) -> tuple[str, int, str] | None:
    db = outbox.context.db
    dispatch_id = new_id()
    with db.transaction() as cursor:
        cursor.execute(db.dialect.sql(statements.NEXT))
        row = cursor.fetchone()
        if row is None:
            return None
        lease = outbox.settings.dispatch_lease_seconds
        cursor.execute(db.dialect.sql(statements.DISPATCH), (dispatch_id, lease, row[0]))
    return queue_key(row[1], row[2]), int(row[0]), dispatch_id


def _look(outbox: Outbox, task_id: int) -> Ran:
    db = outbox.context.db
    with db.transaction(read_only=True) as cursor:
        cursor.execute(db.dialect.sql(statements.LOOK), (task_id,))
        kind, state, error_code, result = cursor.fetchone()
    outcome = {"scheduled": "waiting", "blocked": "waiting"}.get(state, state)
    return Ran(task_id, kind, outcome, error_code, json.loads(result) if result else None)
