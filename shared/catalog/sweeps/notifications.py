"""Events of long ago and what was sent of them. What is still on its way stays, with its event."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Tasks
from shared.catalog.models import Delivery, DeliveryState, Notification, utc_now
from shared.catalog.sweeps import context as sweeps
from shared.catalog.sweeps.context import Pass, SweepContext

_DAY_SECONDS = 86_400.0


class NotificationSweep:
    """Forgets deliveries that ended long ago with their tasks, then events that have none.

    However many a pass finds: rows of the database, page by page in the order of their ids, which
    is that of time. Limits of 0 days keep them.
    """

    name = "notifications"

    def __init__(self, context: SweepContext) -> None:
        self._context = context

    def run(self, turn: Pass) -> None:
        """Make one pass."""
        seconds = turn.limits.notification_days * _DAY_SECONDS
        if seconds <= 0 or turn.limits.dry_run:
            return
        deliveries = partial(_forget_deliveries, tasks=self._context.catalogue.tasks)
        for model, forget in ((Delivery, deliveries), (Notification, _forget_events)):
            after = 0
            while not turn.deadline.expired():
                turn.check()
                page = self._context.db.run_session(
                    partial(_page, model=model, after=after, seconds=seconds), read_only=True
                )
                if not page:
                    break
                turn.counts[model.__tablename__] += self._context.db.run_session(
                    partial(forget, ids=page, seconds=seconds)
                )
                after = page[-1]


def _page(
    session: Session, *, model: type[Delivery | Notification], after: int, seconds: float
) -> list[int]:
    """Return the next ids; the first row that is young ends them, as all behind it are younger."""
    rows = session.execute(
        sa.select(model.id, model.created_at >= utc_now(-seconds))
        .where(model.id > after)
        .order_by(model.id)
        .limit(sweeps.PAGE_ROWS)
    ).all()
    ids = []
    for row_id, is_young in rows:
        if is_young:
            break
        ids.append(int(row_id))
    return ids


def _forget_deliveries(
    session: Session, *, ids: Sequence[int], seconds: float, tasks: Tasks
) -> int:
    old = session.execute(
        sa.select(Delivery.id, Delivery.task_id)
        .where(
            Delivery.id.in_(ids),
            Delivery.state != DeliveryState.PENDING,
            Delivery.ended_at < utc_now(-seconds),
        )
        .order_by(Delivery.id)
        .with_for_update(skip_locked=True)
    ).all()
    session.execute(sa.delete(Delivery).where(Delivery.id.in_([row.id for row in old])))
    # One that failed is kept for a decision, which nobody can take without its delivery.
    tasks.forget(session, [row.task_id for row in old if row.task_id is not None])
    return len(old)


def _forget_events(session: Session, *, ids: Sequence[int], seconds: float) -> int:
    # Who writes a delivery of a past event holds a lock on it, so that none can appear meanwhile.
    locked = session.scalars(
        sa.select(Notification.id)
        .where(Notification.id.in_(ids), Notification.created_at < utc_now(-seconds))
        .order_by(Notification.id)
        .with_for_update(skip_locked=True)
    ).all()
    named = set(
        session.scalars(
            sa.select(Delivery.notification_id)
            .where(Delivery.notification_id.in_(locked))
            .with_for_update(read=True)
        )
    )
    free = [one for one in locked if one not in named]
    session.execute(sa.delete(Notification).where(Notification.id.in_(free)))
    return len(free)
