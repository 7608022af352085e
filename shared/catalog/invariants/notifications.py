"""Invariants of what tenants are told: what is on its way has a task, and an event to tell of."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Delivery, DeliveryState, Notification
from shared.catalog.payloads import NOTIFY_SEND
from shared.outbox.breach import Breach
from shared.outbox.schema import tasks
from shared.outbox.states import ACTIVE

_ACTIVE = sorted(ACTIVE)


def notification_breaches(session: Session, late: dt.datetime) -> Iterator[Breach]:
    """Yield what is wrong with deliveries; what is younger than `late` is on its way."""
    yield from _without_task(session, late)
    yield from _tasks_for_nothing(session, late)
    yield from _without_event(session)


def _without_task(session: Session, late: dt.datetime) -> Iterator[Breach]:
    query = (
        sa.select(Delivery.id, Delivery.task_id, tasks.c.state)
        .outerjoin(tasks, tasks.c.id == Delivery.task_id)
        .where(
            Delivery.state == DeliveryState.PENDING,
            Delivery.created_at < late,
            sa.or_(
                tasks.c.id.is_(None), tasks.c.state.not_in(_ACTIVE), tasks.c.kind != NOTIFY_SEND
            ),
        )
    )
    for delivery_id, task_id, state in session.execute(query):
        detail = f"pending, but its task {task_id} is {state or 'not there'}"
        yield Breach("unfinished rows have their task", f"delivery {delivery_id}", detail)


def _tasks_for_nothing(session: Session, late: dt.datetime) -> Iterator[Breach]:
    query = (
        sa.select(tasks.c.id, tasks.c.state, Delivery.id, Delivery.state)
        .outerjoin(Delivery, Delivery.task_id == tasks.c.id)
        .where(
            tasks.c.kind == NOTIFY_SEND,
            tasks.c.state.in_(_ACTIVE),
            tasks.c.cancel_requested == 0,
            tasks.c.created_at < late,
            sa.or_(Delivery.id.is_(None), Delivery.state != DeliveryState.PENDING),
        )
    )
    for task_id, state, delivery_id, delivery_state in session.execute(query):
        detail = f"{NOTIFY_SEND} is {state}, its delivery {delivery_id} is {delivery_state}"
        yield Breach("unfinished tasks have their row", f"task {task_id}", detail)


def _without_event(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Delivery.id, Delivery.notification_id)
        .outerjoin(Notification, Notification.id == Delivery.notification_id)
        .where(Notification.id.is_(None))
    )
    for delivery_id, notification_id in session.execute(query):
        detail = f"its event {notification_id} is not there"
        yield Breach("deliveries have their event", f"delivery {delivery_id}", detail)
