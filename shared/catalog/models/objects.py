"""Objects and their versions: a name in a bucket, and the generations of it."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from shared.catalog.models.base import MYSQL, Base, KeyBytes
from shared.outbox.schema import BigId, name_type


class ObjectRow(Base):
    """A name in a bucket. Its row lock guards all its versions.

    `generation` is that of the newest write or delete. `current_version_id` is the stored version.
    `served_version_id` is the version that a GET serves (the newest pending, failed or stored
    one); `is_listed` says whether there is one, and size, ETag, type and time are copies of it, so
    that a listing reads this row only. `shared.catalog.versions.refresh` alone writes them.
    """

    __tablename__ = "objects"
    __table_args__ = (
        sa.Index("uq_objects_key", "bucket_id", "object_key", unique=True),
        # A listing's walk: equality on the first two, then the keys in order of their bytes.
        sa.Index("ix_objects_listing", "bucket_id", "is_listed", "object_key"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    bucket_id: Mapped[int] = mapped_column(sa.BigInteger)
    key: Mapped[str] = mapped_column("object_key", KeyBytes)
    generation: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    current_version_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    served_version_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    is_listed: Mapped[int] = mapped_column(sa.SmallInteger, server_default="0")
    size_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    etag: Mapped[str | None] = mapped_column(name_type(64))
    content_type: Mapped[str | None] = mapped_column(sa.String(255))
    modified_at: Mapped[dt.datetime | None]
    created_at: Mapped[dt.datetime]


class Version(Base):
    """One generation of an object. ETag, size, type and metadata never change.

    `staging_key` names the bytes in staging while the row needs them (pending, reviewing, failed,
    and blocked until `staging_until`), else NULL: what no row names may be cleaned up. `task_id`
    is the task that works on it or did last. `blob_id` moves when its upload finds the content
    stored already.
    """

    __tablename__ = "versions"
    __table_args__ = (
        sa.Index("uq_versions_generation", "object_id", "generation", unique=True),
        sa.Index("ix_versions_open", "object_id", "state"),
        sa.Index("ix_versions_bucket", "bucket_id", "state", "id"),
        sa.Index("ix_versions_blob", "blob_id"),
        sa.Index("ix_versions_staging", "staging_key"),
        # What a backup's snapshot held and has been overwritten or deleted since.
        sa.Index("ix_versions_ended", "bucket_id", "ended_at", "id"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    object_id: Mapped[int] = mapped_column(sa.BigInteger)
    bucket_id: Mapped[int] = mapped_column(sa.BigInteger)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    generation: Mapped[int] = mapped_column(sa.BigInteger)
    state: Mapped[str] = mapped_column(name_type(12))
    blob_id: Mapped[int] = mapped_column(sa.BigInteger)
    size_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    sha256: Mapped[str] = mapped_column(name_type(64))
    etag: Mapped[str] = mapped_column(name_type(64))
    content_type: Mapped[str] = mapped_column(sa.String(255))
    sniffed_type: Mapped[str | None] = mapped_column(sa.String(255))
    user_metadata: Mapped[dict[str, str]]
    staging_key: Mapped[str | None] = mapped_column(name_type(191))
    staging_until: Mapped[dt.datetime | None]
    task_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    error_code: Mapped[str | None] = mapped_column(name_type(64))
    created_at: Mapped[dt.datetime]
    stored_at: Mapped[dt.datetime | None]
    ended_at: Mapped[dt.datetime | None]
