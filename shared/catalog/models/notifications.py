"""What tenants are told of their objects: who wants to hear, what happened, what was sent."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from shared.catalog.models.base import MYSQL, Base, KeyBytes
from shared.outbox.schema import BigId, name_type


class Subscription(Base):
    """An address that hears of some events of a tenant, in one bucket or in all (None).

    `secrets` are sealed; all of them sign. After failures in a row nothing is sent before
    `failing_until`. `disabled_code` says why nothing is sent any more.
    """

    __tablename__ = "subscriptions"
    __table_args__ = (
        sa.Index("ix_subscriptions_tenant", "tenant_id", "id"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    bucket_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    prefix: Mapped[str] = mapped_column(KeyBytes)
    url: Mapped[str] = mapped_column(sa.String(2048))
    events: Mapped[list[str]]
    secrets: Mapped[str] = mapped_column(sa.Text)
    is_enabled: Mapped[int] = mapped_column(sa.SmallInteger, server_default="1")
    disabled_code: Mapped[str | None] = mapped_column(name_type(64))
    failures: Mapped[int] = mapped_column(sa.Integer, server_default="0")
    failing_until: Mapped[dt.datetime | None]
    created_at: Mapped[dt.datetime]
    updated_at: Mapped[dt.datetime]


class Notification(Base):
    """One thing that happened, as it is told; written in the transaction that made it so."""

    __tablename__ = "notifications"
    __table_args__ = (
        sa.Index("ix_notifications_tenant", "tenant_id", "id"),
        sa.Index("ix_notifications_created", "created_at"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    type: Mapped[str] = mapped_column(name_type(32))
    data: Mapped[dict[str, Any]]
    created_at: Mapped[dt.datetime]


class Delivery(Base):
    """One event on its way to one subscription. `status` is that of the last answer."""

    __tablename__ = "deliveries"
    __table_args__ = (
        sa.Index("uq_deliveries_event", "notification_id", "subscription_id", unique=True),
        sa.Index("ix_deliveries_subscription", "subscription_id", "id"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    notification_id: Mapped[int] = mapped_column(sa.BigInteger)
    subscription_id: Mapped[int] = mapped_column(sa.BigInteger)
    state: Mapped[str] = mapped_column(name_type(12))
    task_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    tries: Mapped[int] = mapped_column(sa.Integer, server_default="0")
    status: Mapped[int | None] = mapped_column(sa.Integer)
    error_code: Mapped[str | None] = mapped_column(name_type(64))
    created_at: Mapped[dt.datetime]
    ended_at: Mapped[dt.datetime | None]
