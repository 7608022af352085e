"""Reviews of versions, their steps and reviewers, verdicts, and runs of re-reviews."""

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
    or `fail-mode`; `reason` is shown to users. `run_id` is 0, or names the run that has a version
    reviewed again, under the policy of that run; `task_id` is the task that works on it.
    """

    __tablename__ = "reviews"
    __table_args__ = (
        sa.Index("uq_reviews_version", "version_id", "run_id", unique=True),
        sa.Index("ix_reviews_run", "run_id", "state", "id"),
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
    run_id: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    task_id: Mapped[int | None] = mapped_column(sa.BigInteger)


class ReviewStep(Base):
    """What one reviewer said in one review.

    `kind` is the reviewer's. One that answers later was asked under `ask_id`, has it since
    `asked_at`, and must answer before `deadline_at`; `answered_by` says how the answer came:
    `response`, `poll`, or `callback:` with the id that the callback carried.
    """

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
    kind: Mapped[str] = mapped_column(name_type(16), server_default="")
    ask_id: Mapped[str | None] = mapped_column(name_type(64))
    asked_at: Mapped[dt.datetime | None]
    answered_by: Mapped[str | None] = mapped_column(name_type(191))


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


class WebhookReviewer(Base):
    """A reviewer that a tenant runs elsewhere. `secrets` are sealed by the `SecretBox`."""

    __tablename__ = "webhook_reviewers"
    __table_args__ = (
        sa.Index("uq_webhook_reviewers_name", "tenant_id", "name", unique=True),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    name: Mapped[str] = mapped_column(name_type(32))
    url: Mapped[str] = mapped_column(sa.Text)
    status_url: Mapped[str | None] = mapped_column(sa.Text)
    secrets: Mapped[str] = mapped_column(sa.Text)
    created_at: Mapped[dt.datetime]
    updated_at: Mapped[dt.datetime]


class ReviewRun(Base):
    """Reviewing again what a bucket holds that has not passed under the bucket's present policy.

    Versions up to `until_id` are gone through; those up to `cursor_id` have been. `planned` reviews
    were made; how far these are, their own rows tell.
    """

    __tablename__ = "review_runs"
    __table_args__ = (
        sa.Index("ix_review_runs_bucket", "bucket_id", "id"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    bucket_id: Mapped[int] = mapped_column(sa.BigInteger)
    policy: Mapped[dict[str, Any]]
    policy_version: Mapped[str] = mapped_column(name_type(64))
    state: Mapped[str] = mapped_column(name_type(12))
    until_id: Mapped[int] = mapped_column(sa.BigInteger)
    cursor_id: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    seen: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    planned: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    task_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    started_by: Mapped[str] = mapped_column(sa.String(128), server_default="")
    error_code: Mapped[str | None] = mapped_column(name_type(64))
    created_at: Mapped[dt.datetime]
    ended_at: Mapped[dt.datetime | None]
