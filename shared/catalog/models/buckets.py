"""Buckets, and the storage channels that they name."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from shared.catalog.models.base import MYSQL, Base
from shared.outbox.schema import BigId, name_type


class Bucket(Base):
    """A tenant's named collection of objects, and where and under which rules they are kept.

    `channels` are channel names, the preferred one first. `review_policy` is a `ReviewPolicy` as
    JSON, None without review; `review_policy_version` is its hash. `lifecycle` is a `Lifecycle`,
    `backup` a `BackupPolicy`,
    `origin` a `StoredOrigin`. `replica_channels` are those that every content is also to stand on.
    `region_fallback_seconds` is how long nobody may consume the region's queue before work goes to
    the base queue, None for never. `instant_upload` is one of
    `InstantUploads`. The columns stand in the order of the migrations.
    """

    __tablename__ = "buckets"
    __table_args__ = (
        sa.Index("uq_buckets_name", "tenant_id", "name", unique=True),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    name: Mapped[str] = mapped_column(name_type(63))
    region: Mapped[str] = mapped_column(name_type(32), server_default="")
    channels: Mapped[list[str]]
    review_policy: Mapped[dict[str, Any] | None]
    review_policy_version: Mapped[str | None] = mapped_column(name_type(64))
    max_object_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    created_at: Mapped[dt.datetime]
    updated_at: Mapped[dt.datetime]
    lifecycle: Mapped[dict[str, Any] | None]
    replica_channels: Mapped[list[str] | None]
    origin: Mapped[dict[str, Any] | None]
    backup: Mapped[dict[str, Any] | None]
    region_fallback_seconds: Mapped[float | None]
    instant_upload: Mapped[str] = mapped_column(name_type(12), server_default="hash")


class ChannelRecord(Base):
    """A place that keeps bytes. `credentials` is sealed by the `SecretBox`, never plain."""

    __tablename__ = "channels"
    __table_args__ = (MYSQL,)

    name: Mapped[str] = mapped_column(name_type(64), primary_key=True)
    kind: Mapped[str] = mapped_column(name_type(16))
    region: Mapped[str] = mapped_column(name_type(32), server_default="")
    settings: Mapped[dict[str, Any]]
    credentials: Mapped[str | None] = mapped_column(sa.Text)
    is_enabled: Mapped[int] = mapped_column(sa.SmallInteger, server_default="1")
    created_at: Mapped[dt.datetime]
    updated_at: Mapped[dt.datetime]


class Revision(Base):
    """A number that grows with every change of a part of the catalogue, for caches to compare."""

    __tablename__ = "revisions"
    __table_args__ = (MYSQL,)

    name: Mapped[str] = mapped_column(name_type(32), primary_key=True)
    revision: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
