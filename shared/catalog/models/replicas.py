"""Copies that a bucket's rules ask for beside the first one, and how they are looked after."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from shared.catalog.models.base import MYSQL, Base
from shared.outbox.schema import BigId, name_type


class Replica(Base):
    """The work of having one blob on one channel; the copy itself is a location.

    `lost_location_id` is the location that the pending copy replaces: its bytes were found missing
    or damaged. `tries` counts the answers of tasks that have ended. `reason` says why a row is
    gone. Guarded by the blob's row lock.
    """

    __tablename__ = "replicas"
    __table_args__ = (
        sa.Index("uq_replicas_blob", "blob_id", "channel", unique=True),
        sa.Index("ix_replicas_state", "state", "channel", "id"),
        sa.Index("ix_replicas_tenant", "tenant_id", "state", "id"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    blob_id: Mapped[int] = mapped_column(sa.BigInteger)
    channel: Mapped[str] = mapped_column(name_type(64))
    state: Mapped[str] = mapped_column(name_type(12))
    reason: Mapped[str] = mapped_column(name_type(32), server_default="")
    location_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    lost_location_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    task_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    tries: Mapped[int] = mapped_column(sa.Integer, server_default="0")
    losses: Mapped[int] = mapped_column(sa.Integer, server_default="0")
    error_code: Mapped[str | None] = mapped_column(name_type(64))
    error_detail: Mapped[str | None] = mapped_column(sa.Text)
    created_at: Mapped[dt.datetime]
    updated_at: Mapped[dt.datetime]
    completed_at: Mapped[dt.datetime | None]


class ReplicaRule(Base):
    """A channel on which every content of a bucket is to stand also, now or until `removed_at`.

    The job walks the bucket's stored versions again and again: `cursor` is the last one seen in
    this pass, `missing_now` how many copies it lacked so far, `missing` how many the last whole
    pass lacked. A removed rule is walked once more, to let go of the copies that only it had.
    """

    __tablename__ = "replica_rules"
    __table_args__ = (
        sa.Index("uq_replica_rules_channel", "bucket_id", "channel", unique=True),
        sa.Index("ix_replica_rules_turn", "state", "turned_at", "id"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    bucket_id: Mapped[int] = mapped_column(sa.BigInteger)
    channel: Mapped[str] = mapped_column(name_type(64))
    state: Mapped[str] = mapped_column(name_type(12))
    cursor: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    missing_now: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    missing: Mapped[int | None] = mapped_column(sa.BigInteger)
    turned_at: Mapped[dt.datetime]
    passed_at: Mapped[dt.datetime | None]
    created_at: Mapped[dt.datetime]
    changed_at: Mapped[dt.datetime]
    removed_at: Mapped[dt.datetime | None]


class LocationAudit(Base):
    """How far the look at what is really on a channel has come; `cursor` is a location's id.

    `suspects` are locations that the last look found missing or other than they were: only what
    the next look finds as well is a loss. The counts are of this pass.
    """

    __tablename__ = "location_audits"
    __table_args__ = (MYSQL,)

    channel: Mapped[str] = mapped_column(name_type(64), primary_key=True)
    cursor: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    suspects: Mapped[dict[str, Any] | None]
    checked: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    lost: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    error_detail: Mapped[str | None] = mapped_column(sa.Text)
    started_at: Mapped[dt.datetime]
    turned_at: Mapped[dt.datetime]
    passed_at: Mapped[dt.datetime | None]
