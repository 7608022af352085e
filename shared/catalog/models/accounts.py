"""Tenants, their API keys, and answers kept for requests that may come twice."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from shared.catalog.models.base import MYSQL, Base
from shared.outbox.schema import BigId, key_type, name_type


class Tenant(Base):
    """One customer. `id` is a short name that other tables, tasks and keys carry."""

    __tablename__ = "tenants"
    __table_args__ = (MYSQL,)

    id: Mapped[str] = mapped_column(name_type(64), primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(255), server_default="")
    is_enabled: Mapped[int] = mapped_column(sa.SmallInteger, server_default="1")
    created_at: Mapped[dt.datetime]


class ApiKey(Base):
    """A bearer key. Only the SHA-256 of its secret is kept."""

    __tablename__ = "api_keys"
    __table_args__ = (
        sa.Index("uq_api_keys_secret", "secret_sha256", unique=True),
        sa.Index("ix_api_keys_tenant", "tenant_id", "id"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    label: Mapped[str] = mapped_column(sa.String(255), server_default="")
    secret_sha256: Mapped[str] = mapped_column(name_type(64))
    scopes: Mapped[list[str]]
    role: Mapped[str] = mapped_column(name_type(16), server_default="")
    created_at: Mapped[dt.datetime]
    expires_at: Mapped[dt.datetime | None]
    revoked_at: Mapped[dt.datetime | None]


class IdempotencyRecord(Base):
    """The answer to a request with an `Idempotency-Key`, for as long as it may come again.

    Written in the transaction of the request's effect; `status` is NULL only inside it.
    """

    __tablename__ = "idempotency"
    __table_args__ = (
        sa.Index("ix_idempotency_expires", "expires_at"),
        MYSQL,
    )

    tenant_id: Mapped[str] = mapped_column(name_type(64), primary_key=True)
    idempotency_key: Mapped[str] = mapped_column(key_type(191), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(name_type(64))
    status: Mapped[int | None] = mapped_column(sa.SmallInteger)
    answer: Mapped[dict[str, Any] | None]
    created_at: Mapped[dt.datetime]
    expires_at: Mapped[dt.datetime]
