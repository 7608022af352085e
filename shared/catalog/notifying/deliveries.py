"""One event on its way to one address: what is sent, and what is written of the answer."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import (
    Delivery,
    DeliveryState,
    Notification,
    Subscription,
    utc_clock,
    utc_now,
)
from shared.catalog.notifying.emitting import EventType
from shared.catalog.notifying.subscriptions import need_receiver, secrets_of
from shared.catalog.payloads import SendNotification
from shared.catalog.secret_box import SecretBox
from shared.core.errors import ConflictError
from shared.outbox.kinds import EndedTask
from shared.outbox.policy import RetryPolicy

#: Half a minute to a few hours between tries, for three days: a receiver may be down a weekend.
RETRY = RetryPolicy(
    base_seconds=10.0, cap_seconds=4 * 3600.0, max_attempts=60, give_up_after_seconds=3 * 86400.0
)
#: Seconds that one execution may take.
LIMIT_SECONDS = 60.0
#: Failures in a row after which an address is left alone for a while, by everything for it.
FAILURES_TO_REST = 3
#: Seconds of the first rest; it doubles up to the longest.
_REST_SECONDS, _MOST_REST_SECONDS = 5.0, 900.0


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent. `rest_seconds` is how long the address is to be left alone still.

    `is_in_doubt`: the last thing that was sent to the subscription has failed.
    """

    subscription_id: int
    url: str
    message_id: str
    body: bytes
    secrets: tuple[str, ...] = field(repr=False)
    rest_seconds: float = 0.0
    is_in_doubt: bool = False


def read_message(session: Session, delivery_id: int, box: SecretBox) -> Message | None:
    """Return what is to be sent, None when nothing is left to send or nobody is there to hear."""
    delivery = session.get(Delivery, delivery_id)
    if delivery is None or delivery.state != DeliveryState.PENDING:
        return None
    notification = session.get(Notification, delivery.notification_id)
    subscription = session.get(Subscription, delivery.subscription_id)
    if notification is None or subscription is None or not subscription.is_enabled:
        return None
    # A test is asked for to see whether the address is well again.
    is_test = notification.type == EventType.TEST
    body = {
        "type": notification.type,
        "timestamp": _iso(notification.created_at),
        "data": shown_data(notification),
    }
    return Message(
        subscription_id=subscription.id,
        url=subscription.url,
        message_id=f"msg_{notification.id}_{subscription.id}",
        body=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
        secrets=tuple(secrets_of(subscription, box)),
        rest_seconds=0.0 if is_test else _rest_seconds(session, subscription),
        is_in_doubt=subscription.failures > 0,
    )


def shown_data(notification: Notification) -> dict[str, object]:
    """Return what tenants see of an event: all but the ids that only this system knows."""
    return {name: value for name, value in notification.data.items() if name != "bucket_id"}


def lock_delivery(session: Session, delivery_id: int) -> Delivery | None:
    """Lock a delivery."""
    return session.get(Delivery, delivery_id, with_for_update=True, populate_existing=True)


def is_rest_over(session: Session, subscription_id: int) -> bool:
    """Tell whether what waits for an address may be sent, and keep the answer from changing."""
    subscription = session.get(
        Subscription, subscription_id, with_for_update={"read": True}, populate_existing=True
    )
    return subscription is None or _rest_seconds(session, subscription) <= 0


def delivered(session: Session, delivery_id: int, status: int) -> bool:
    """Write that a locked delivery has arrived; its address is well.

    True when it was not before: what waits for it may be woken after the commit.
    """
    delivery = session.get(Delivery, delivery_id)
    if delivery is None:
        return False
    delivery.state = DeliveryState.DELIVERED
    delivery.tries += 1
    delivery.status = status
    delivery.error_code = None
    delivery.ended_at = session.scalar(sa.select(utc_clock()))
    subscription = session.get(Subscription, delivery.subscription_id)
    is_well_again = subscription is not None and subscription.failures > 0
    if subscription is not None and is_well_again:
        subscription.failures = 0
        subscription.failing_until = None
    session.flush()
    return is_well_again


def refused(
    session: Session, delivery_id: int, *, status: int | None, code: str, is_gone: bool
) -> None:
    """Note that a locked delivery has failed this time; too many in a row give its address a rest.

    What was under way when the rest began does not make it longer. With `is_gone` the receiver has
    said that it wants nothing any more: the subscription is off.
    """
    delivery = session.get(Delivery, delivery_id)
    if delivery is None:
        return
    delivery.tries += 1
    delivery.status = status
    delivery.error_code = code
    subscription = session.get(
        Subscription, delivery.subscription_id, with_for_update=True, populate_existing=True
    )
    if subscription is not None and is_gone:
        subscription.failures += 1
        subscription.is_enabled = 0
        subscription.disabled_code = "gone"
    elif subscription is not None and _rest_seconds(session, subscription) <= 0:
        subscription.failures += 1
        if subscription.failures >= FAILURES_TO_REST:
            doubled = _REST_SECONDS * 2 ** min(subscription.failures - FAILURES_TO_REST, 20)
            subscription.failing_until = utc_now(min(doubled, _MOST_REST_SECONDS))
    session.flush()


class DeliveryHooks:
    """Hooks of `notify.send`: a delivery never waits for a task that has ended."""

    def lock(self, session: Session, payload: SendNotification) -> None:
        """Lock the delivery."""
        lock_delivery(session, payload.delivery_id)

    def on_end(self, session: Session, task: EndedTask, outcome: str) -> None:
        """Note that it was given up, and why; it can be sent again."""
        delivery = _of(session, task)
        if delivery is None or delivery.state != DeliveryState.PENDING:
            return
        delivery.state = DeliveryState.FAILED
        delivery.error_code = delivery.error_code or task.error_code or outcome
        delivery.ended_at = session.scalar(sa.select(utc_clock()))
        session.flush()

    def on_retry(self, session: Session, task: EndedTask) -> None:
        """Send it again, also what has arrived already. Raises ConflictError without a receiver."""
        delivery = _of(session, task)
        if delivery is None:
            raise ConflictError("the delivery is kept no longer", code="delivery_gone")
        need_receiver(session.get(Subscription, delivery.subscription_id))
        delivery.state = DeliveryState.PENDING
        delivery.error_code = None
        delivery.ended_at = None
        session.flush()


def _of(session: Session, task: EndedTask) -> Delivery | None:
    if not isinstance(task.payload, SendNotification):
        raise TypeError(f"the payload of {task.kind} names no delivery")
    return session.get(Delivery, task.payload.delivery_id)


def _rest_seconds(session: Session, subscription: Subscription) -> float:
    if subscription.failing_until is None:
        return 0.0
    now = session.scalar(sa.select(utc_clock()))
    return max(0.0, (subscription.failing_until - now).total_seconds()) if now else 0.0


def _iso(moment: dt.datetime) -> str:
    return moment.isoformat(timespec="milliseconds") + "Z"
