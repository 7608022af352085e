"""Lost copies of contents, and restores that an operator has asked for."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from shared.catalog.models.base import MYSQL, Base, KeyBytes
from shared.outbox.schema import BigId, name_type


class Loss(Base):
    """A stored location whose bytes were found missing or damaged, once per location.

    `round` grows when it is reported again after it had ended. `location_id` never holds bytes
    again: what is restored stands under a fresh key, `restored_location_id`.
    """

    __tablename__ = "losses"
    __table_args__ = (
        sa.Index("uq_losses_location", "location_id", unique=True),
        sa.Index("ix_losses_state", "state", "id"),
        sa.Index("ix_losses_tenant", "tenant_id", "state", "id"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    blob_id: Mapped[int] = mapped_column(sa.BigInteger)
    location_id: Mapped[int] = mapped_column(sa.BigInteger)
    channel: Mapped[str] = mapped_column(name_type(64))
    state: Mapped[str] = mapped_column(name_type(16))
    round: Mapped[int] = mapped_column(sa.Integer, server_default="1")
    found_by: Mapped[str] = mapped_column(name_type(16))
    detail: Mapped[str] = mapped_column(sa.String(512), server_default="")
    restored_from: Mapped[str | None] = mapped_column(name_type(191))
    restored_location_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    task_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    error_code: Mapped[str | None] = mapped_column(name_type(64))
    created_at: Mapped[dt.datetime]
    ended_at: Mapped[dt.datetime | None]


class Restore(Base):
    """A bucket or prefix brought back to a point in time, or searched for lost content.

    `run_id` is the backup run whose manifest is read; `cursor` how far, and as its
    `base` how far manifests were read that had to be left; `counts` what came of it.
    """

    __tablename__ = "restores"
    __table_args__ = (
        sa.Index("ix_restores_bucket", "bucket_id", "id"),
        sa.Index("ix_restores_state", "state", "id"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    bucket_id: Mapped[int] = mapped_column(sa.BigInteger)
    mode: Mapped[str] = mapped_column(name_type(12))
    prefix: Mapped[str] = mapped_column(KeyBytes)
    at: Mapped[dt.datetime | None]
    policy: Mapped[str] = mapped_column(name_type(12), server_default="never")
    is_dry_run: Mapped[int] = mapped_column(sa.SmallInteger, server_default="0")
    run_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    state: Mapped[str] = mapped_column(name_type(12))
    cursor: Mapped[dict[str, Any] | None]
    counts: Mapped[dict[str, Any] | None]
    task_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    error_code: Mapped[str | None] = mapped_column(name_type(64))
    created_at: Mapped[dt.datetime]
    ended_at: Mapped[dt.datetime | None]


class RestoreItem(Base):
    """What became of one entry of the manifest. `position` is where it stands there."""

    __tablename__ = "restore_items"
    __table_args__ = (
        sa.Index("uq_restore_items_position", "restore_id", "position", unique=True),
        sa.Index("ix_restore_items_outcome", "restore_id", "outcome", "id"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    restore_id: Mapped[int] = mapped_column(sa.BigInteger)
    position: Mapped[int] = mapped_column(sa.BigInteger)
    key: Mapped[str] = mapped_column("object_key", KeyBytes)
    outcome: Mapped[str] = mapped_column(name_type(16))
    size_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    version_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    detail: Mapped[str] = mapped_column(sa.String(512), server_default="")
    created_at: Mapped[dt.datetime]
