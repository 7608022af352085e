"""A tenant's upload sessions, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Bucket, SessionState, UploadSession


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Sessions with the names of their buckets (None once deleted), and where the next begins."""

    items: Sequence[tuple[UploadSession, str | None]]
    next_cursor: int | None


def list_sessions(
    session: Session,
    tenant_id: str,
    *,
    state: SessionState,
    before: int | None = None,
    limit: int = 100,
) -> SessionPage:
    """Return a tenant's sessions in a state, the newest first, those older than `before`."""
    statement = (
        sa.select(UploadSession, Bucket.name)
        .outerjoin(Bucket, Bucket.id == UploadSession.bucket_id)
        .where(UploadSession.tenant_id == tenant_id, UploadSession.state == state)
    )
    if before is not None:
        statement = statement.where(UploadSession.id < before)
    rows = session.execute(statement.order_by(UploadSession.id.desc()).limit(limit + 1)).all()
    items = [(row, name) for row, name in rows[:limit]]
    return SessionPage(items, items[-1][0].id if len(rows) > limit else None)


def find_operation(
    session: Session, tenant_id: str, operation_id: str
) -> tuple[UploadSession, str | None] | None:
    """Return the session of an operation id, None when there is none."""
    found = session.execute(
        sa.select(UploadSession, Bucket.name)
        .outerjoin(Bucket, Bucket.id == UploadSession.bucket_id)
        .where(UploadSession.tenant_id == tenant_id, UploadSession.operation_id == operation_id)
    ).one_or_none()
    return None if found is None else (found[0], found[1])
