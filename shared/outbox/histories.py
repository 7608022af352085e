"""What the recorded moves of tasks must say: each legal, without a gap, and ended ones left alone.

Read in the order of an index, task by task, so that any number of events needs no memory.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice, pairwise
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.outbox.breach import Breach
from shared.outbox.records import OWN_EVENTS
from shared.outbox.schema import task_audit, task_events, tasks
from shared.outbox.states import TERMINAL, State, is_legal

#: Rows read at a time.
_PAGE = 1000
#: Audited actions that give an ended task a new life.
_REVIVALS = ("retry", "retry_forced")
_ENDED = frozenset(state.value for state in TERMINAL)


@dataclass(frozen=True, slots=True)
class _Move:
    """One recorded transition."""

    task_id: int
    source: str | None
    target: str
    at: dt.datetime

    @property
    def is_revival(self) -> bool:
        return self.source in _ENDED and self.target not in _ENDED


def history_breaches(session: Session, *, before: dt.datetime) -> Iterator[Breach]:
    """Yield what the events of tasks tell that must not have happened.

    A task whose last event is younger than `before` may just be moving on.
    """
    tasks_moves = (list(group) for _, group in groupby(_moves(session), attrgetter("task_id")))
    while page := list(islice(tasks_moves, _PAGE)):
        for moves in page:
            yield from _illegal(moves)
            yield from _unaudited(session, moves)
        # Kinds that record everything begin with the birth of the row; others leave gaps.
        whole = [moves for moves in page if moves[0].source is None]
        for moves in whole:
            yield from _gaps(moves)
        yield from _behind(session, [moves[-1] for moves in whole if moves[-1].at < before])


def _illegal(moves: list[_Move]) -> Iterator[Breach]:
    for move in moves:
        if not _is_legal(move):
            detail = f"moved from {move.source} to {move.target} at {move.at}"
            yield Breach("only legal transitions happen", f"task {move.task_id}", detail)


def _is_legal(move: _Move) -> bool:
    try:
        source = None if move.source is None else State(move.source)
        return is_legal(source, State(move.target))
    except ValueError:
        return False


def _gaps(moves: list[_Move]) -> Iterator[Breach]:
    for earlier, later in pairwise(moves):
        if later.source != earlier.target:
            detail = f"was {earlier.target}, then moved from {later.source} at {later.at}"
            yield Breach("every transition is recorded", f"task {later.task_id}", detail)


def _behind(session: Session, last_moves: list[_Move]) -> Iterator[Breach]:
    query = sa.select(tasks.c.id, tasks.c.state).where(
        tasks.c.id.in_([move.task_id for move in last_moves])
    )
    states = {row.id: row.state for row in session.execute(query)}
    for move in last_moves:
        state = states.get(move.task_id, move.target)
        if state != move.target:
            detail = f"is {state}, but moved to {move.target} last, at {move.at}"
            yield Breach("every transition is recorded", f"task {move.task_id}", detail)


def _unaudited(session: Session, moves: list[_Move]) -> Iterator[Breach]:
    revivals = sum(move.is_revival for move in moves)
    if not revivals:
        return
    audited = session.scalar(
        sa.select(sa.func.count()).where(
            task_audit.c.task_id == moves[0].task_id, task_audit.c.action.in_(_REVIVALS)
        )
    )
    if (audited or 0) < revivals:
        subject = f"task {moves[0].task_id}"
        detail = f"left an end {revivals} times, {audited or 0} of them audited"
        yield Breach("ended tasks change only by an audited retry", subject, detail)


def _moves(session: Session) -> Iterator[_Move]:
    """Yield all moves, task by task, each task's in the order in which they were committed."""
    last = (0, 0)
    columns = (
        task_events.c.id,
        task_events.c.task_id,
        task_events.c.type,
        task_events.c.data,
        task_events.c.created_at,
    )
    order = (task_events.c.task_id, task_events.c.id)
    while True:
        query = sa.select(*columns).where(_behind_key(last)).order_by(*order).limit(_PAGE)
        page = session.execute(query).all()
        for row in page:
            data: Any = json.loads(row.data) if isinstance(row.data, str) else row.data
            # What handlers tell of their progress may use the same words.
            if row.type in OWN_EVENTS and "from" in data and "to" in data:
                yield _Move(row.task_id, data["from"], str(data["to"]), row.created_at)
        if len(page) < _PAGE:
            return
        last = (page[-1].task_id, page[-1].id)


def _behind_key(last: tuple[int, int]) -> sa.ColumnElement[bool]:
    # Spelled out: not every optimizer turns a comparison of tuples into a range of the index.
    task_id, event_id = last
    same = sa.and_(task_events.c.task_id == task_id, task_events.c.id > event_id)
    return sa.or_(task_events.c.task_id > task_id, same)
