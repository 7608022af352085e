"""Verdicts on contents: a decided review that counts again under the same rules."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import StepOutcome, Verdict
from shared.catalog.review_policy import ReviewPolicy


def find_verdict(
    session: Session, *, tenant_id: str, sha256: str, policy: ReviewPolicy, content_type: str
) -> Verdict | None:
    """Return the verdict on a content under this policy version, declared as this type."""
    return session.scalars(
        sa.select(Verdict).where(
            Verdict.tenant_id == tenant_id,
            Verdict.sha256 == sha256,
            Verdict.policy_version == policy.version,
            Verdict.declared_type == policy.declared_key(content_type),
        )
    ).one_or_none()


def has_passed(
    session: Session, *, tenant_id: str, sha256: str, policy: ReviewPolicy, content_type: str
) -> bool:
    """Tell whether the content needs no further review under this policy."""
    found = find_verdict(
        session, tenant_id=tenant_id, sha256=sha256, policy=policy, content_type=content_type
    )
    return found is not None and found.outcome == StepOutcome.PASS
