"""What happened to an object, written with its deliveries in the transaction that made it so.

So nothing is told that did not happen, and nothing that happened is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.models import (
    Bucket,
    Delivery,
    DeliveryState,
    Notification,
    ObjectRow,
    Subscription,
    Version,
    utc_clock,
)
from shared.catalog.payloads import NOTIFY_SEND, SendNotification

QUEUE = "notify"


class EventType(StrEnum):
    """What a subscription may ask for."""

    STORED = "object.stored"
    """A version is on its channel and current."""
    BLOCKED = "object.blocked"
    """A version did not pass its review."""
    DELETED = "object.deleted"
    """A version was removed by a DELETE, a removal by prefix or its expiry."""
    FAILED = "object.failed"
    """A version could not be stored; its bytes are still readable."""
    TEST = "subscription.test"
    """Asked for by hand; every subscription hears it."""


def emit(session: Session, catalogue: Catalogue, version: Version, event: EventType) -> None:
    """Write an event of a version for whoever wants to hear of it.

    Call it with the version's object locked, after its state was set. Costs one read of an index
    where nobody listens. Nothing is written while this deployment does not serve notifications.
    """
    if not catalogue.serves(QUEUE):
        return
    listening = session.scalars(
        sa.select(Subscription).where(
            Subscription.tenant_id == version.tenant_id, Subscription.is_enabled == 1
        )
    ).all()
    if not listening:
        return
    row = session.get(ObjectRow, version.object_id)
    key = "" if row is None else row.key
    chosen = [one for one in listening if _wants(one, version.bucket_id, key, event)]
    if not chosen:
        return
    bucket = session.get(Bucket, version.bucket_id)
    data = {
        "bucket": None if bucket is None else bucket.name,
        "bucket_id": version.bucket_id,
        "key": key,
        "version_id": version.id,
        "generation": version.generation,
        "size": version.size_bytes,
        "sha256": version.sha256,
        "etag": version.etag,
        "content_type": version.content_type,
        "code": version.error_code,
    }
    write(session, catalogue, version.tenant_id, event, data, chosen)


def write(
    session: Session,
    catalogue: Catalogue,
    tenant_id: str,
    event: EventType,
    data: Mapping[str, Any],
    to: Sequence[Subscription],
) -> Notification:
    """Write an event and its delivery to each of these subscriptions."""
    notification = Notification(
        tenant_id=tenant_id, type=event.value, data=dict(data), created_at=utc_clock()
    )
    session.add(notification)
    session.flush()
    for subscription in sorted(to, key=lambda one: one.id):
        begin_delivery(session, catalogue, notification.id, subscription)
    return notification


def begin_delivery(
    session: Session, catalogue: Catalogue, notification_id: int, subscription: Subscription
) -> Delivery:
    """Let an event be sent to a subscription, by a task of the same transaction."""
    delivery = Delivery(
        tenant_id=subscription.tenant_id,
        notification_id=notification_id,
        subscription_id=subscription.id,
        state=DeliveryState.PENDING,
        created_at=utc_clock(),
    )
    session.add(delivery)
    session.flush()
    _send(session, catalogue, delivery)
    return delivery


def begin_again(session: Session, catalogue: Catalogue, delivery: Delivery) -> None:
    """Let a locked delivery that has ended be sent by a new task: its old one is kept no longer."""
    delivery.state = DeliveryState.PENDING
    delivery.error_code = None
    delivery.ended_at = None
    _send(session, catalogue, delivery)


def _send(session: Session, catalogue: Catalogue, delivery: Delivery) -> None:
    delivery.task_id = catalogue.tasks.enqueue(
        session,
        NOTIFY_SEND,
        SendNotification(delivery_id=delivery.id),
        tenant_id=delivery.tenant_id,
    ).id
    session.flush()


def _wants(subscription: Subscription, bucket_id: int, key: str, event: EventType) -> bool:
    return (
        event.value in subscription.events
        and subscription.bucket_id in (None, bucket_id)
        and key.encode().startswith(subscription.prefix.encode())
    )
