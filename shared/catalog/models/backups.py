"""Backup runs, what they are made of, and what a backup target holds."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from shared.catalog.models.base import MYSQL, Base
from shared.outbox.schema import BigId, name_type

_LIVE_SLOT = "CASE WHEN state = 'stored' AND kind = 'content' THEN 1 END"


class BackupRun(Base):
    """One backup of one bucket to one target, for one slot.

    `snapshot_at` is the moment that it holds; `snapshot_version_id` the newest version when its
    round began: none of the snapshot's is above it.
    `cursor` is how far versions were enumerated. Its pins go at `pins_until` at the latest. The
    counts are as of the run task's last look, beside them the grace of its rule. `slot` is a time,
    a manual run's own id, or `continuous`: that row is `following` for ever and holds what was
    copied as it became live.
    """

    __tablename__ = "backup_runs"
    __table_args__ = (
        sa.Index("uq_backup_runs_slot", "bucket_id", "target", "slot", unique=True),
        sa.Index("ix_backup_runs_state", "state", "id"),
        sa.Index("ix_backup_runs_bucket", "bucket_id", "state", "snapshot_at"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    bucket_id: Mapped[int] = mapped_column(sa.BigInteger)
    target: Mapped[str] = mapped_column(name_type(64))
    slot: Mapped[str] = mapped_column(name_type(64))
    state: Mapped[str] = mapped_column(name_type(12))
    snapshot_version_id: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    snapshot_at: Mapped[dt.datetime | None]
    cursor: Mapped[dict[str, Any] | None]
    counts: Mapped[dict[str, Any] | None]
    manifest_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    manifest_sha256: Mapped[str | None] = mapped_column(name_type(64))
    pins_until: Mapped[dt.datetime | None]
    task_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    error_code: Mapped[str | None] = mapped_column(name_type(64))
    created_at: Mapped[dt.datetime]
    ended_at: Mapped[dt.datetime | None]


class BackupItem(Base):
    """One content in one run; `content_id` is what the target holds of it.

    An item of an open run without a `content_id` goes with a pin of its blob.
    """

    __tablename__ = "backup_items"
    __table_args__ = (
        sa.Index("uq_backup_items_blob", "run_id", "blob_id", unique=True),
        sa.Index("ix_backup_items_state", "run_id", "state", "id"),
        sa.Index("ix_backup_items_content", "content_id", "run_id"),
        sa.Index("ix_backup_items_blob", "blob_id", "run_id"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    run_id: Mapped[int] = mapped_column(sa.BigInteger)
    blob_id: Mapped[int] = mapped_column(sa.BigInteger)
    state: Mapped[str] = mapped_column(name_type(12))
    size_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    is_reused: Mapped[int] = mapped_column(sa.SmallInteger, server_default="0")
    content_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    task_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    error_code: Mapped[str | None] = mapped_column(name_type(64))
    created_at: Mapped[dt.datetime]
    ended_at: Mapped[dt.datetime | None]


class BackupContent(Base):
    """Bytes on a backup target: a content of one tenant, or a run's manifest.

    As a location: written before its first byte, kept after its last, `(target, physical_key)`
    never used twice. `live_slot` makes a content stand on a target at most once. `unneeded_at` is
    when pruning first found that no complete or open run names it.
    """

    __tablename__ = "backup_contents"
    __table_args__ = (
        sa.Index("uq_backup_contents_key", "target", "physical_key", unique=True),
        sa.Index(
            "uq_backup_contents_content",
            "target",
            "tenant_id",
            "sha256",
            "size_bytes",
            "live_slot",
            unique=True,
        ),
        sa.Index("ix_backup_contents_state", "state", "id"),
        sa.Index("ix_backup_contents_tenant", "target", "tenant_id", "state", "id"),
        sa.Index("ix_backup_contents_sha256", "tenant_id", "sha256", "size_bytes"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    target: Mapped[str] = mapped_column(name_type(64))
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    kind: Mapped[str] = mapped_column(name_type(12))
    sha256: Mapped[str] = mapped_column(name_type(64))
    size_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    live_slot: Mapped[int | None] = mapped_column(
        sa.SmallInteger, sa.Computed(_LIVE_SLOT, persisted=False), deferred=True
    )
    key: Mapped[str] = mapped_column("physical_key", name_type(255))
    state: Mapped[str] = mapped_column(name_type(16))
    run_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    task_id: Mapped[int] = mapped_column(sa.BigInteger)
    fence: Mapped[int] = mapped_column(sa.BigInteger)
    upload_id: Mapped[str | None] = mapped_column(name_type(1024))
    etag: Mapped[str | None] = mapped_column(name_type(255))
    tries: Mapped[int] = mapped_column(sa.Integer, server_default="0")
    next_try_at: Mapped[dt.datetime | None]
    error_detail: Mapped[str | None] = mapped_column(sa.Text)
    created_at: Mapped[dt.datetime]
    stored_at: Mapped[dt.datetime | None]
    unneeded_at: Mapped[dt.datetime | None]
    tombstone_at: Mapped[dt.datetime | None]
    probed_at: Mapped[dt.datetime | None]
