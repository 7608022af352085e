"""Fenced transactions that are tried again after a deadlock, a lock wait or a lost race for a key.

The handlers' transactions lock rows of several tables in one order; InnoDB may still refuse one of
two that met, and the refused one has written nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.outbox.db import TRIES, BusyError, Database

if TYPE_CHECKING:
    from shared.outbox.completion import Completion
    from shared.outbox.execution import Execution

T = TypeVar("T")


def complete(
    execution: Execution,
    db: Database,
    *,
    lock: Callable[[Session], object],
    body: Callable[[Completion], T],
) -> T:
    """End the task as completed with what `body` writes; `lock` takes the domain rows first.

    Both may run more than once, each time in a transaction that sees what others have committed.
    """

    def once() -> T:
        with execution.complete(lock=[_void(lock)]) as tx:
            return body(tx)

    return _again(execution, db, once)


def fenced(
    execution: Execution,
    db: Database,
    *,
    lock: Callable[[Session], object],
    body: Callable[[Session], T],
) -> T:
    """Commit what `body` writes while the task is still this execution's; the task runs on."""

    def once() -> T:
        with execution.fenced(lock=[_void(lock)]) as session:
            return body(session)

    return _again(execution, db, once)


def no_lock(session: Session) -> None:
    """Take nothing: only the task's own row guards what the body writes."""


def _void(lock: Callable[[Session], object]) -> Callable[[Session], None]:
    def take(session: Session) -> None:
        lock(session)

    return take


def _again(execution: Execution, db: Database, once: Callable[[], T]) -> T:
    for left in range(TRIES - 1, -1, -1):
        try:
            return once()
        except BusyError:
            if left == 0:
                raise
        except db.errors as error:
            # A refused unique key means that another committed first: the next look sees it.
            if left == 0 or not isinstance(error, sa.exc.IntegrityError):
                raise
        execution.wait(random.uniform(0.001, 0.02))
    raise AssertionError("unreachable")
