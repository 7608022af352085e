"""A tenant's subscriptions: where events go, which, and the secrets that sign them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.models import (
    Delivery,
    DeliveryState,
    Notification,
    Subscription,
    utc_clock,
)
from shared.catalog.models.base import MAX_KEY_BYTES
from shared.catalog.notifying.emitting import (
    QUEUE,
    EventType,
    begin_again,
    begin_delivery,
    write,
)
from shared.catalog.secret_box import SecretBox
from shared.core.errors import ConflictError, InvalidError, NotFoundError
from shared.core.webhooks import MAX_SECRETS, check_secret, make_secret
from shared.outbox.schema import tasks

#: Subscriptions of one tenant: each costs every event a row and a request.
MAX_SUBSCRIPTIONS = 100
#: What a subscription may ask for; a test reaches every one.
CHOICES = tuple(event.value for event in EventType if event is not EventType.TEST)
#: Events of the past that one replay sends again.
MAX_REPLAYED = 1000


@dataclass(frozen=True, slots=True)
class NewSubscription:
    """The row, and the secret that was made for it, which is shown once."""

    subscription: Subscription
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many deliveries were begun, and the tasks that are to be run again.

    `next_after` is where the next replay goes on; None when there was nothing beyond.
    """

    begun: int
    again: tuple[int, ...]
    next_after: int | None = None


def add_subscription(
    session: Session,
    catalogue: Catalogue,
    tenant_id: str,
    *,
    url: str,
    events: Sequence[str],
    bucket_id: int | None,
    prefix: str,
    box: SecretBox,
) -> NewSubscription:
    """Let an address hear of a tenant's events. The caller has vetted the address.

    Raises InvalidError for events that are none and a prefix that no key can have, ConflictError
    when there are too many, SwitchedOffError where nobody would send them.
    """
    catalogue.need(QUEUE)
    if len(prefix.encode()) > MAX_KEY_BYTES:
        raise InvalidError(
            f"a prefix has at most {MAX_KEY_BYTES} bytes of UTF-8", code="prefix_invalid"
        )
    unknown = sorted(set(events) - set(CHOICES))
    if unknown or not events:
        raise InvalidError(f"events are some of {', '.join(CHOICES)}", code="event_unknown")
    count = session.scalar(sa.select(sa.func.count()).where(Subscription.tenant_id == tenant_id))
    if (count or 0) >= MAX_SUBSCRIPTIONS:
        raise ConflictError(
            f"a tenant has at most {MAX_SUBSCRIPTIONS} subscriptions", code="too_many_subscriptions"
        )
    secret = make_secret()
    subscription = Subscription(
        tenant_id=tenant_id,
        bucket_id=bucket_id,
        prefix=prefix,
        url=url,
        events=sorted(set(events)),
        secrets=_sealed(box, [secret]),
        created_at=utc_clock(),
        updated_at=utc_clock(),
    )
    session.add(subscription)
    session.flush()
    session.refresh(subscription)
    return NewSubscription(subscription, secret)


def find_subscription(
    session: Session, tenant_id: str, subscription_id: int, *, lock: bool = False
) -> Subscription:
    """Return a tenant's subscription. Raises NotFoundError (`subscription_not_found`)."""
    found = session.get(
        Subscription, subscription_id, with_for_update=lock or None, populate_existing=lock
    )
    if found is None or found.tenant_id != tenant_id:
        raise NotFoundError("there is no such subscription", code="subscription_not_found")
    return found


def need_receiver(subscription: Subscription | None) -> None:
    """Raise ConflictError when nobody is there to hear: it is gone, or switched off."""
    if subscription is None:
        raise ConflictError("the subscription is gone", code="subscription_gone")
    if not subscription.is_enabled:
        raise ConflictError(
            "the subscription is switched off: switch it on first", code="subscription_off"
        )


def list_subscriptions(session: Session, tenant_id: str) -> list[Subscription]:
    """Return a tenant's subscriptions by id. Secrets stay sealed."""
    query = sa.select(Subscription).where(Subscription.tenant_id == tenant_id)
    return list(session.scalars(query.order_by(Subscription.id)))


def enable(session: Session, subscription: Subscription, *, is_enabled: bool) -> None:
    """Let a locked subscription hear events again, or no more; what waits for it is not lost."""
    subscription.is_enabled = int(is_enabled)
    subscription.disabled_code = None if is_enabled else "by_hand"
    subscription.failures = 0
    subscription.failing_until = None
    subscription.updated_at = utc_clock()
    session.flush()


def rotate_secret(session: Session, subscription: Subscription, box: SecretBox) -> str:
    """Add a fresh secret to a locked subscription and return it; the oldest of five goes.

    All of them sign, so that the receiver can change over without missing an event.
    """
    secret = make_secret()
    kept = [*secrets_of(subscription, box), secret][-MAX_SECRETS:]
    subscription.secrets = _sealed(box, kept)
    subscription.updated_at = utc_clock()
    session.flush()
    return secret


def drop_old_secrets(session: Session, subscription: Subscription, box: SecretBox) -> None:
    """Let only the newest secret of a locked subscription sign from now on."""
    subscription.secrets = _sealed(box, secrets_of(subscription, box)[-1:])
    subscription.updated_at = utc_clock()
    session.flush()


def secrets_of(subscription: Subscription, box: SecretBox) -> list[str]:
    """Return the secrets in plain, the newest last."""
    kept: list[str] = json.loads(box.open(subscription.secrets)["secrets"])
    return kept


def delete_subscription(session: Session, subscription: Subscription) -> None:
    """Remove a locked subscription; deliveries under way end as `gone`."""
    session.delete(subscription)
    session.flush()


def send_test(session: Session, catalogue: Catalogue, subscription: Subscription) -> Delivery:
    """Send an event without an object, to see that the address answers.

    Raises ConflictError (`subscription_off`) when nothing would be sent.
    """
    catalogue.need(QUEUE)
    need_receiver(subscription)
    notification = write(
        session,
        catalogue,
        subscription.tenant_id,
        EventType.TEST,
        {"subscription_id": subscription.id},
        [subscription],
    )
    return session.scalars(
        sa.select(Delivery).where(
            Delivery.notification_id == notification.id,
            Delivery.subscription_id == subscription.id,
        )
    ).one()


def replay(
    session: Session,
    catalogue: Catalogue,
    subscription: Subscription,
    *,
    after: int = 0,
    limit: int = MAX_REPLAYED,
) -> Replayed:
    """Send a locked subscription the past events that it has not got, those with ids above `after`.

    Events that were never for it are sent as well, when they fit it now and are kept still. Those
    whose delivery failed are begun anew by running their task again, which the caller does: their
    task ids are returned. Raises ConflictError (`subscription_off`).
    """
    catalogue.need(QUEUE)
    need_receiver(subscription)
    # Shared locks: the clean-up must not take an event away while a delivery of it is written.
    notifications = session.scalars(
        sa.select(Notification)
        .where(
            Notification.tenant_id == subscription.tenant_id,
            Notification.id > after,
            Notification.type.in_(subscription.events),
        )
        .order_by(Notification.id)
        .limit(limit)
        .with_for_update(read=True)
    ).all()
    begun = {
        delivery.notification_id: delivery
        for delivery in session.scalars(
            sa.select(Delivery).where(
                Delivery.notification_id.in_([one.id for one in notifications]),
                Delivery.subscription_id == subscription.id,
            )
        )
    }
    failed = [one for one in begun.values() if one.state == DeliveryState.FAILED]
    kept = _kept(session, failed)
    count, again = 0, []
    for notification in notifications:
        delivery = begun.get(notification.id)
        if delivery is None:
            if _fits(subscription, notification):
                begin_delivery(session, catalogue, notification.id, subscription)
                count += 1
        elif delivery.state == DeliveryState.FAILED:
            if delivery.task_id in kept:
                again.append(delivery.task_id)
            else:
                count += send_anew(session, catalogue, delivery.id)
    is_full = len(notifications) == limit
    return Replayed(count, tuple(again), notifications[-1].id if is_full else None)


def send_anew(session: Session, catalogue: Catalogue, delivery_id: int) -> bool:
    """Give a delivery that has ended a new task when its old one is kept no longer.

    False when it waits, is gone, or has its task still, which is to be run again. The caller has
    made sure that somebody hears.
    """
    delivery = session.get(Delivery, delivery_id, with_for_update=True, populate_existing=True)
    if delivery is None or delivery.state == DeliveryState.PENDING or _kept(session, [delivery]):
        return False
    begin_again(session, catalogue, delivery)
    return True


def _kept(session: Session, deliveries: Sequence[Delivery]) -> frozenset[int]:
    """Return the ids of those tasks of deliveries that were not purged."""
    ids = [one.task_id for one in deliveries if one.task_id is not None]
    return frozenset(session.scalars(sa.select(tasks.c.id).where(tasks.c.id.in_(ids))))


def _fits(subscription: Subscription, notification: Notification) -> bool:
    key = str(notification.data.get("key", ""))
    bucket_id = notification.data.get("bucket_id")
    return subscription.bucket_id in (None, bucket_id) and key.encode().startswith(
        subscription.prefix.encode()
    )


def _sealed(box: SecretBox, secrets: Sequence[str]) -> str:
    return box.seal({"secrets": json.dumps([check_secret(one) for one in secrets])})
