"""Moving what waits in one region's queues to another region, or to the base queue.

Running tasks are left to their owners. Safe beside workers, scans and enqueues: a row is moved
under its lock in the state that was read, and a message on its way finds its dispatch over.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis
import structlog

from shared.outbox.context import OutboxContext
from shared.outbox.lanes import LaneKey, lower_lanes
from shared.outbox.messages import queue_key
from shared.outbox.records import add_events
from shared.outbox.statements import regions as statements
from shared.outbox.states import State
from shared.outbox.window import Place, moment

#: Rows moved in one transaction.
PAGE = 500
#: In this order: what becomes pending in one page is not met again in the next.
_STATES = (State.DISPATCHING, State.DISPATCHED, State.PENDING, State.SCHEDULED, State.BLOCKED)
_IN_DISPATCH = (State.DISPATCHING, State.DISPATCHED)

_log = structlog.get_logger("outbox.moving")


def move_page(context: OutboxContext, place: Place, region: str) -> int:
    """Move up to a page of waiting tasks of `place` to `region`; returns how many.

    0 means that none is left but those that another transaction holds at this moment. Raises
    UnavailableError.
    """
    for state in _STATES:
        page = context.db.run(partial(_move, context, place=place, region=region, state=state))
        if not page:
            continue
        if state not in (State.SCHEDULED, State.BLOCKED):
            lower_lanes(context.db, [_lane(context, row, place.queue, region) for row in page])
        _after(context, place, [str(row[5]) for row in page if row[5]])
        return len(page)
    return 0


@dataclass(frozen=True, slots=True)
class Left:
    """What a place still holds."""

    waiting: int
    running: int


def count_left(context: OutboxContext, place: Place) -> Left:
    """Count a place's open tasks; the cost grows with them."""
    sql = context.db.dialect.sql(statements.COUNT_STATE)

    def count(cursor: Any) -> Left:
        counts: dict[State, int] = {}
        for state in (*_STATES, State.RUNNING):
            cursor.execute(sql, (*place, state.value))
            counts[state] = int(cursor.fetchone()[0])
        running = counts.pop(State.RUNNING)
        return Left(sum(counts.values()), running)

    return context.db.run(count, read_only=True)


def _lane(
    context: OutboxContext, row: Sequence[Any], queue: str, region: str
) -> tuple[LaneKey, dt.datetime]:
    key = LaneKey(queue, region, str(row[2]), int(row[3]))
    return key, moment(context.db.dialect, row[4])


def _move(
    context: OutboxContext, cursor: Any, *, place: Place, region: str, state: State
) -> list[Sequence[Any]]:
    dialect = context.db.dialect
    cursor.execute(dialect.sql(statements.WAITING), (*place, state.value, PAGE))
    page = list(cursor.fetchall())
    if not page:
        return []
    ids = sorted(int(row[0]) for row in page)
    cursor.execute(dialect.sql_ids(_statement(state), ids=len(ids)), [region, *ids, state.value])
    data = {"from_region": place.region, "to_region": region}
    if state in _IN_DISPATCH:
        kind, data = State.PENDING.value, {"from": state.value, "to": State.PENDING.value, **data}
    else:
        kind = "moved"
    add_events(cursor, dialect, [(task_id, kind, json.dumps(data)) for task_id in ids])
    return page


def _statement(state: State) -> str:
    if state in _IN_DISPATCH:
        return statements.MOVE_DISPATCHED
    return statements.MOVE_SCHEDULED if state is State.SCHEDULED else statements.MOVE


def _after(context: OutboxContext, place: Place, dispatches: Sequence[str]) -> None:
    """Take the moved tasks' messages out of Redis, and wake the filler; both only save time."""
    name = queue_key(*place)
    scripts = context.scripts
    try:
        if dispatches:
            with context.redis.pipeline(transaction=False) as pipeline:
                pipeline.hdel(scripts.messages_key(name), *dispatches)
                for dispatch_id in dispatches:
                    pipeline.lrem(scripts.list_key(name), 1, dispatch_id)
                pipeline.execute()
        scripts.ring_filler()
    except redis.RedisError as error:
        _log.info("moved_messages_left", place=name, error=str(error))
