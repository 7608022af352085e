"""Resumable uploads: a session that lives until its result is known, and the parts it has."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from shared.catalog.models.base import MYSQL, Base, KeyBytes
from shared.outbox.schema import BigId, key_type, name_type


class UploadSession(Base):
    """One upload in parts. Its row lock guards its parts.

    `public_id` names it outside and holds its birth time; `operation_id` is the client's, with the
    `fingerprint` of what it asked for. `size_bytes` and `sha256` are declared, of the whole;
    `conditions` and `lifetime` are for its version.
    `received_bytes` and `part_count` follow the part rows. `completion` is the fingerprint of the
    request that froze it. `result` is what the operation came to, kept until `expires_at`, which
    before the end is the sliding expiry, and NULL while a worker or an abort has it.
    """

    __tablename__ = "upload_sessions"
    __table_args__ = (
        sa.Index("uq_upload_sessions_public", "public_id", unique=True),
        sa.Index("uq_upload_sessions_operation", "tenant_id", "operation_id", unique=True),
        # One session makes one version, and no version comes from two.
        sa.Index("uq_upload_sessions_version", "version_id", unique=True),
        sa.Index("ix_upload_sessions_tenant", "tenant_id", "state", "id"),
        # Who else writes the key asks which uploads of it are on their way.
        sa.Index("ix_upload_sessions_key", "bucket_id", "object_key", "state"),
        sa.Index("ix_upload_sessions_expiry", "state", "expires_at", "id"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    public_id: Mapped[str] = mapped_column(name_type(32))
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    operation_id: Mapped[str] = mapped_column(key_type(191))
    fingerprint: Mapped[str] = mapped_column(name_type(64))
    bucket_id: Mapped[int] = mapped_column(sa.BigInteger)
    key: Mapped[str] = mapped_column("object_key", KeyBytes)
    size_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    sha256: Mapped[str | None] = mapped_column(name_type(64))
    content_type: Mapped[str] = mapped_column(sa.String(255))
    user_metadata: Mapped[dict[str, str]]
    conditions: Mapped[dict[str, Any] | None]
    lifetime: Mapped[dict[str, Any] | None]
    part_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    state: Mapped[str] = mapped_column(name_type(12))
    received_bytes: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    part_count: Mapped[int] = mapped_column(sa.Integer, server_default="0")
    completion: Mapped[str | None] = mapped_column(name_type(64))
    task_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    version_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    result: Mapped[dict[str, Any] | None]
    created_at: Mapped[dt.datetime]
    expires_at: Mapped[dt.datetime | None]
    ended_at: Mapped[dt.datetime | None]


class UploadPart(Base):
    """The bytes that count for one number of a session: of several writes, the last committed one.

    Each write has a staging key of its own; what no row names any more may be cleaned up.
    """

    __tablename__ = "upload_parts"
    __table_args__ = (
        sa.Index("uq_upload_parts_staging", "staging_key", unique=True),
        MYSQL,
    )

    session_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    staging_key: Mapped[str] = mapped_column(name_type(191))
    size_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    sha256: Mapped[str] = mapped_column(name_type(64))
    md5: Mapped[str] = mapped_column(name_type(32))
    created_at: Mapped[dt.datetime]
