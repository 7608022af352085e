"""What `blox doctor` says of reviewers: which are here, who names one that is not, what is left."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import (
    SERVED,
    Bucket,
    Review,
    ReviewState,
    StepOutcome,
    Verdict,
    Version,
)
from shared.catalog.review_policy import ReviewPolicy
from shared.runtime.assembly import Parts
from shared.runtime.optional_reviewers import optional_reviewers

#: Buckets that are named for one reviewer that is not here.
_SHOWN = 5


def look_at_reviewers(parts: Parts) -> Iterator[tuple[str, str, str]]:
    """Yield (verdict, what, detail); nothing while no bucket's policy names any reviewer."""
    optional = optional_reviewers(parts.settings)
    with Session(parts.engine) as session:
        rows = session.execute(
            sa.select(Bucket.tenant_id, Bucket.name, Bucket.review_policy)
            .where(Bucket.review_policy.is_not(None))
            .order_by(Bucket.id)
        ).all()
    used: dict[str, str | None] = {}
    buckets: dict[str, list[str]] = {}
    for row in rows:
        for spec in ReviewPolicy.model_validate(row.review_policy).reviewers:
            used[spec.kind] = used.get(spec.kind) or optional.why_absent(spec)
            buckets.setdefault(spec.kind, []).append(f"{row.tenant_id}/{row.name}")
    for kind, reason in sorted(used.items()):
        names = ", ".join(dict.fromkeys(buckets[kind][:_SHOWN]))
        if reason is not None:
            yield "fault", f"reviewer {kind}", f"{reason}; named by {names}"
        else:
            yield "ok", f"reviewer {kind}", "is here"
    if "webhook" in used and not parts.settings.review.callback_url:
        detail = "BLOX_REVIEW__CALLBACK_URL is empty: reviewers elsewhere are told paths only"
        yield "warning", "reviewer webhook", detail
    yield from _unjudged(parts)


def _unjudged(parts: Parts) -> Iterator[tuple[str, str, str]]:
    """Yield buckets whose changed rules could not be brought to all content: reviewers failed."""
    passed = sa.exists().where(
        Verdict.tenant_id == Version.tenant_id,
        Verdict.sha256 == Version.sha256,
        Verdict.policy_version == Bucket.review_policy_version,
        Verdict.outcome == StepOutcome.PASS,
    )
    query = (
        sa.select(Bucket.tenant_id, Bucket.name, sa.func.count(Version.id.distinct()))
        .select_from(Bucket)
        .join(Review, Review.bucket_id == Bucket.id)
        .join(Version, Version.id == Review.version_id)
        .where(
            Review.tenant_id == Bucket.tenant_id,
            Review.state == ReviewState.FAILED,
            Review.policy_version == Bucket.review_policy_version,
            Version.state.in_(sorted(SERVED)),
            ~passed,
        )
        .group_by(Bucket.id, Bucket.tenant_id, Bucket.name)
        .order_by(Bucket.id)
    )
    with Session(parts.engine) as session:
        for tenant, name, count in session.execute(query):
            detail = (
                f"{count} versions are readable that reviewers could not judge under the present "
                f"rules: POST /v1/buckets/{name}:re-review tries again"
            )
            yield "warning", f"re-review {tenant}/{name}", detail
