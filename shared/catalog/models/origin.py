"""Pulls from origins, what was not there, and what has come of a body so far."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from shared.catalog.models.base import MYSQL, Base, KeyBytes
from shared.outbox.schema import BigId, name_type

_OPEN_SLOT = "CASE WHEN state = 'open' THEN 1 END"


class OriginPull(Base):
    """One fetch of an absent key, under the rule that counted for it.

    `open_slot` follows `state`, so that a key has one open pull per rule, over all nodes.
    `generation` is the object's at the trigger, 0 before there was one. `hops` names the
    connections that brought the bytes; `error_code` says why it did not, or why they were dropped.
    """

    __tablename__ = "origin_pulls"
    __table_args__ = (
        sa.Index(
            "uq_origin_pulls_open", "bucket_id", "object_key", "rule", "open_slot", unique=True
        ),
        sa.Index("ix_origin_pulls_state", "state", "id"),
        sa.Index("ix_origin_pulls_ended", "ended_at"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    bucket_id: Mapped[int] = mapped_column(sa.BigInteger)
    key: Mapped[str] = mapped_column("object_key", KeyBytes)
    rule: Mapped[str] = mapped_column(name_type(32))
    state: Mapped[str] = mapped_column(name_type(12))
    open_slot: Mapped[int | None] = mapped_column(
        sa.SmallInteger, sa.Computed(_OPEN_SLOT, persisted=False), deferred=True
    )
    generation: Mapped[int] = mapped_column(sa.BigInteger)
    task_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    version_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    received_bytes: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    hops: Mapped[dict[str, Any] | None]
    error_code: Mapped[str | None] = mapped_column(name_type(64))
    created_at: Mapped[dt.datetime]
    ended_at: Mapped[dt.datetime | None]


class OriginMiss(Base):
    """A key that was not to be had lately: until `expires_at` nobody asks again by a GET."""

    __tablename__ = "origin_misses"
    __table_args__ = (sa.Index("ix_origin_misses_expires", "expires_at"), MYSQL)

    bucket_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    key: Mapped[str] = mapped_column("object_key", KeyBytes, primary_key=True)
    rule: Mapped[str] = mapped_column(name_type(32))
    code: Mapped[str] = mapped_column(name_type(64))
    expires_at: Mapped[dt.datetime]


class OriginSegment(Base):
    """A stretch of a body that has come, in staging: a pull that is cut short goes on behind it."""

    __tablename__ = "origin_segments"
    __table_args__ = (
        sa.Index("uq_origin_segments_staging", "staging_key", unique=True),
        MYSQL,
    )

    pull_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    staging_key: Mapped[str] = mapped_column(name_type(191))
    size_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    created_at: Mapped[dt.datetime]
