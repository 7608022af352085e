"""Sending at once what waits for an address that has had a rest, or was tried in vain, and is well.

Without it each delivery would sleep out the time that was set while nobody answered.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.models import Delivery, by_index
from shared.catalog.notifying.emitting import QUEUE
from shared.core.clock import Deadline
from shared.outbox.db import Database
from shared.outbox.schema import tasks
from shared.outbox.states import State

#: Tasks of one transaction.
_PAGE = 200
#: Seconds that one call goes on; what is left then waits for its own time.
WAKE_SECONDS = 10.0


def wake_deliveries(
    db: Database, catalogue: Catalogue, tenant_id: str, subscription_id: int
) -> int:
    """Make due what waits to be sent to a subscription; returns how many deliveries that were.

    To be called after the commit that made the address well. Pages of transactions of its own.
    """
    deadline = Deadline(WAKE_SECONDS)
    woken, after = 0, 0
    while not deadline.expired():
        page = db.run_session(partial(_waiting, tenant_id=tenant_id, after=after), read_only=True)
        if not page:
            break
        after = page[-1][0]
        wake = partial(_wake, catalogue=catalogue, page=page, subscription_id=subscription_id)
        woken += db.run_session(wake)
    return woken


def _waiting(session: Session, *, tenant_id: str, after: int) -> list[tuple[int, int]]:
    """Return the next tasks of a tenant that wait for their time, each with its delivery."""
    statement = (
        sa.select(tasks.c.id, tasks.c.payload)
        .where(
            tasks.c.queue == QUEUE,
            tasks.c.region == "",
            tasks.c.state == State.SCHEDULED,
            tasks.c.tenant_id == tenant_id,
            tasks.c.id > after,
        )
        .order_by(tasks.c.id)
        .limit(_PAGE)
    )
    # Else the order by id might choose to read all tasks there are.
    statement = by_index(statement, tasks, "ix_tasks_claim")
    return [(row.id, _delivery_id(row.payload)) for row in session.execute(statement)]


def _delivery_id(payload: object) -> int:
    envelope = json.loads(payload) if isinstance(payload, (str, bytes)) else payload
    return int(envelope["p"].get("delivery_id", 0)) if isinstance(envelope, dict) else 0


def _wake(
    session: Session,
    *,
    catalogue: Catalogue,
    page: Sequence[tuple[int, int]],
    subscription_id: int,
) -> int:
    own = set(
        session.scalars(
            sa.select(Delivery.id).where(
                Delivery.id.in_([delivery_id for _, delivery_id in page]),
                Delivery.subscription_id == subscription_id,
            )
        )
    )
    ids = [task_id for task_id, delivery_id in page if delivery_id in own]
    return catalogue.tasks.wake_all(session, ids) if ids else 0
