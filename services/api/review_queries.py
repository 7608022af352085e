"""Reading reviews for people, with the object that each is about. Nothing is locked."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Bucket, ObjectRow, Review, ReviewStep, Version
from shared.core.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class ReviewRow:
    """A review and the object that it judges; what belongs to the object may be gone."""

    id: int
    tenant_id: str
    bucket: str | None
    key: str | None
    version_id: int
    state: str
    reason: str
    decided_by: str | None
    sha256: str
    size: int | None
    content_type: str | None
    task_id: int | None
    deadline_at: dt.datetime | None
    created_at: dt.datetime
    decided_at: dt.datetime | None
    run_id: int


_QUERY = (
    sa.select(
        Review.id,
        Review.tenant_id,
        Bucket.name.label("bucket"),
        ObjectRow.key,
        Review.version_id,
        Review.state,
        Review.reason,
        Review.decided_by,
        Review.sha256,
        Version.size_bytes.label("size"),
        Version.content_type,
        sa.func.coalesce(Review.task_id, Version.task_id).label("task_id"),
        Review.deadline_at,
        Review.created_at,
        Review.decided_at,
        Review.run_id,
    )
    .outerjoin(Version, Version.id == Review.version_id)
    .outerjoin(ObjectRow, ObjectRow.id == Version.object_id)
    .outerjoin(Bucket, Bucket.id == Review.bucket_id)
)


def list_reviews(
    session: Session,
    tenant_id: str | None,
    *,
    state: str | None,
    run_id: int | None = None,
    before: int | None,
    limit: int,
) -> list[ReviewRow]:
    """Return reviews, newest first, those with an id below `before`; of all tenants for None.

    `run_id` names the run of re-reviews whose reviews they are.
    """
    query = _QUERY
    if run_id is not None:
        query = query.where(Review.run_id == run_id)
    if tenant_id is not None:
        query = query.where(Review.tenant_id == tenant_id)
    if state is not None:
        query = query.where(Review.state == state)
    if before is not None:
        query = query.where(Review.id < before)
    rows = session.execute(query.order_by(Review.id.desc()).limit(limit)).mappings()
    return [_review(row) for row in rows]


def show_review(
    session: Session, tenant_id: str | None, review_id: int
) -> tuple[ReviewRow, Sequence[ReviewStep]]:
    """Return one review and its steps in order. Raises NotFoundError (`review_not_found`)."""
    query = _QUERY.where(Review.id == review_id)
    if tenant_id is not None:
        query = query.where(Review.tenant_id == tenant_id)
    row = session.execute(query).mappings().first()
    if row is None:
        raise NotFoundError("there is no such review", code="review_not_found")
    steps = session.scalars(
        sa.select(ReviewStep).where(ReviewStep.review_id == review_id).order_by(ReviewStep.id)
    ).all()
    return _review(row), steps


def _review(row: sa.RowMapping) -> ReviewRow:
    return ReviewRow(**{str(name): value for name, value in row.items()})
