"""Damages of notifications that `blox check` must see."""

from __future__ import annotations

from typing import Any

from shared.catalog.models import Delivery, Notification
from tests.acceptance.damages import PAST, Damage
from tests.acceptance.still import Still

_EVENT = 999_999


def _delivery(still: Still, **values: Any) -> None:
    still.add(
        Delivery,
        tenant_id="default",
        notification_id=_EVENT,
        subscription_id=1,
        created_at=PAST,
        **values,
    )


def _without_task(still: Still) -> None:
    still.add(
        Notification,
        id=_EVENT,
        tenant_id="default",
        type="object.stored",
        data={},
        created_at=PAST,
    )
    _delivery(still, state="pending", task_id=999_999)


def _without_event(still: Still) -> None:
    _delivery(still, state="delivered")


NOTIFICATION_DAMAGES = (
    Damage(
        "event forgotten on its way",
        _without_task,
        "unfinished rows have their task",
        "pending, but its task",
    ),
    Damage("event gone", _without_event, "deliveries have their event", "is not there"),
)
