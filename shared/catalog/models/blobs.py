"""Blobs, who refers to them, and where their bytes are."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from shared.catalog.models.base import MYSQL, Base
from shared.outbox.schema import BigId, name_type

_LIVE_SLOT = "CASE WHEN state IN ('condemned', 'live') THEN 1 END"


class Blob(Base):
    """One immutable content of one tenant. Its row lock guards its references and its state.

    `live_slot` follows `state`: 1 for live and condemned, so that a content has at most one such
    blob per tenant. `generation` grows with each condemnation and with the move to `deleting`.
    `delete_after` is the end of the grace; `delete_owner` the delete task that took the blob.
    """

    __tablename__ = "blobs"
    __table_args__ = (
        sa.Index("uq_blobs_content", "tenant_id", "sha256", "size_bytes", "live_slot", unique=True),
        sa.Index("ix_blobs_state", "state", "id"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    sha256: Mapped[str] = mapped_column(name_type(64))
    size_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    state: Mapped[str] = mapped_column(name_type(12))
    live_slot: Mapped[int | None] = mapped_column(
        sa.SmallInteger, sa.Computed(_LIVE_SLOT, persisted=False), deferred=True
    )
    generation: Mapped[int] = mapped_column(sa.BigInteger, server_default="1")
    delete_after: Mapped[dt.datetime | None]
    delete_owner: Mapped[int | None] = mapped_column(sa.BigInteger)
    created_at: Mapped[dt.datetime]
    stored_at: Mapped[dt.datetime | None]
    deleted_at: Mapped[dt.datetime | None]


class BlobRef(Base):
    """A named reference: this holder needs this blob. A row, not a counter."""

    __tablename__ = "blob_refs"
    __table_args__ = (
        sa.Index("uq_blob_refs_holder", "blob_id", "holder_kind", "holder_id", unique=True),
        sa.Index("ix_blob_refs_holder", "holder_kind", "holder_id"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    blob_id: Mapped[int] = mapped_column(sa.BigInteger)
    holder_kind: Mapped[str] = mapped_column(name_type(12))
    holder_id: Mapped[int] = mapped_column(sa.BigInteger)
    created_at: Mapped[dt.datetime]


class Location(Base):
    """One copy of a blob on one channel; written before its first byte, kept after its last.

    `(channel, physical_key)` is never used twice. `task_id`, `fence` and `attempt` name the
    execution that wrote the intent; `upload_id` an open multipart upload on the channel.
    """

    __tablename__ = "locations"
    __table_args__ = (
        sa.Index("uq_locations_key", "channel", "physical_key", unique=True),
        sa.Index("ix_locations_blob", "blob_id", "state"),
        sa.Index("ix_locations_state", "state", "id"),
        sa.Index("ix_locations_channel", "channel", "state", "id"),
        # The sweep's walk over tombstones that were not probed yet.
        sa.Index("ix_locations_probe", "state", "probed_at", "tombstone_at"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    blob_id: Mapped[int] = mapped_column(sa.BigInteger)
    channel: Mapped[str] = mapped_column(name_type(64))
    key: Mapped[str] = mapped_column("physical_key", name_type(255))
    state: Mapped[str] = mapped_column(name_type(16))
    task_id: Mapped[int] = mapped_column(sa.BigInteger)
    fence: Mapped[int] = mapped_column(sa.BigInteger)
    attempt: Mapped[int] = mapped_column(sa.Integer)
    upload_id: Mapped[str | None] = mapped_column(name_type(1024))
    etag: Mapped[str | None] = mapped_column(name_type(255))
    tries: Mapped[int] = mapped_column(sa.Integer, server_default="0")
    next_try_at: Mapped[dt.datetime | None]
    error_detail: Mapped[str | None] = mapped_column(sa.Text)
    created_at: Mapped[dt.datetime]
    stored_at: Mapped[dt.datetime | None]
    condemned_at: Mapped[dt.datetime | None]
    tombstone_at: Mapped[dt.datetime | None]
    probed_at: Mapped[dt.datetime | None]
