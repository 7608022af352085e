"""Reviews of versions, their steps, and verdicts that are used again for the same content."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from shared.catalog.models.base import MYSQL, Base
from shared.outbox.schema import BigId, name_type


class Review(Base):
    """The review of one version, under the policy that its bucket had at the PUT.

    `deadline_at` ends the wait for a person. `decided_by` is a key's label, `verdict`, `reviewer`
    or `fail-mode`; `reason` is shown to users.
    """

    __tablename__ = "reviews"
    __table_args__ = (
        sa.Index("uq_reviews_version", "version_id", unique=True),
        sa.Index("ix_reviews_tenant", "tenant_id", "state", "id"),
        sa.Index("ix_reviews_deadline", "state", "deadline_at"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    bucket_id: Mapped[int] = mapped_column(sa.BigInteger)
    version_id: Mapped[int] = mapped_column(sa.BigInteger)
    blob_id: Mapped[int] = mapped_column(sa.BigInteger)
    sha256: Mapped[str] = mapped_column(name_type(64))
    policy: Mapped[dict[str, Any]]
    policy_version: Mapped[str] = mapped_column(name_type(64))
    state: Mapped[str] = mapped_column(name_type(12))
    reason: Mapped[str] = mapped_column(sa.String(512), server_default="")
    decided_by: Mapped[str | None] = mapped_column(sa.String(128))
    deadline_at: Mapped[dt.datetime | None]
    created_at: Mapped[dt.datetime]
    decided_at: Mapped[dt.datetime | None]


class ReviewStep(Base):
    """What one reviewer said in one review."""

    __tablename__ = "review_steps"
    __table_args__ = (
        sa.Index("uq_review_steps_step", "review_id", "step", unique=True),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    review_id: Mapped[int] = mapped_column(sa.BigInteger)
    step: Mapped[str] = mapped_column(name_type(32))
    outcome: Mapped[str] = mapped_column(name_type(12))
    detail: Mapped[str] = mapped_column(sa.String(512), server_default="")
    deadline_at: Mapped[dt.datetime | None]
    created_at: Mapped[dt.datetime]
    ended_at: Mapped[dt.datetime | None]


class Verdict(Base):
    """A decided review of a content under one policy version, declared as one type.

    The declared type belongs to the key: the same bytes may pass as one type and not as another.
    """

    __tablename__ = "verdicts"
    __table_args__ = (
        sa.Index(
            "uq_verdicts_content",
            "tenant_id",
            "sha256",
            "policy_version",
            "declared_type",
            unique=True,
        ),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    sha256: Mapped[str] = mapped_column(name_type(64))
    policy_version: Mapped[str] = mapped_column(name_type(64))
    declared_type: Mapped[str] = mapped_column(name_type(255))
    outcome: Mapped[str] = mapped_column(name_type(12))
    reason: Mapped[str] = mapped_column(sa.String(512), server_default="")
    review_id: Mapped[int] = mapped_column(sa.BigInteger)
    created_at: Mapped[dt.datetime]
