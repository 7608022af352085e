"""A run over a bucket: a review for each version that has not passed under the present policy.

It makes tasks page by page and never more than some thousand at a time, and ends when all are made;
how far these are is counted from their own rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.models import (
    SERVED,
    Bucket,
    Review,
    ReviewRun,
    ReviewRunState,
    ReviewState,
    StepOutcome,
    Verdict,
    Version,
    by_index,
    utc_clock,
)
from shared.catalog.payloads import REVIEW_RECHECK, CheckReview
from shared.catalog.regions import region_of
from shared.catalog.review_policy import ReviewPolicy
from shared.core.errors import NotFoundError, SupersededError

#: Versions of one page, and so tasks of one transaction.
PAGE_VERSIONS = 100
#: Re-reviews of one bucket that are open at a time.
MOST_OPEN = 2000
#: Of a run and its reviews: behind what clients wait for.
PRIORITY = 3


@dataclass(frozen=True, slots=True)
class Progress:
    """A run and how many of its reviews are in each state."""

    run: ReviewRun
    reviews: dict[str, int]


def show_run(session: Session, tenant_id: str | None, run_id: int) -> Progress:
    """Return a run and its progress. Raises NotFoundError (`re_review_not_found`)."""
    run = session.get(ReviewRun, run_id)
    if run is None or (tenant_id is not None and run.tenant_id != tenant_id):
        raise NotFoundError("there is no such run", code="re_review_not_found")
    rows = session.execute(
        sa.select(Review.state, sa.func.count())
        .where(Review.run_id == run.id)
        .group_by(Review.state)
    )
    return Progress(run, {str(state): int(count) for state, count in rows})


def list_runs(session: Session, bucket_id: int, *, limit: int) -> Sequence[ReviewRun]:
    """Return a bucket's runs, newest first."""
    statement = sa.select(ReviewRun).where(ReviewRun.bucket_id == bucket_id)
    return session.scalars(statement.order_by(ReviewRun.id.desc()).limit(limit)).all()


def lock_run(session: Session, run_id: int) -> ReviewRun | None:
    """Lock a run's row."""
    return session.scalars(
        sa.select(ReviewRun)
        .where(ReviewRun.id == run_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()


def open_reviews(session: Session, run_id: int) -> int:
    """Count the re-reviews under way in a run's bucket, also those of runs before it."""
    run = session.get(ReviewRun, run_id)
    if run is None:
        return 0
    own = sa.select(ReviewRun.id).where(
        ReviewRun.bucket_id == run.bucket_id,
        # Those of older rules end as soon as somebody looks at them.
        ReviewRun.state != ReviewRunState.SUPERSEDED,
    )
    count = session.scalar(
        sa.select(sa.func.count()).where(Review.run_id.in_(own), Review.state == ReviewState.OPEN)
    )
    return int(count or 0)


def plan_page(session: Session, catalogue: Catalogue, run_id: int) -> int:
    """Make the reviews of the next page in a locked run; returns how many versions it looked at.

    0 is the end. Raises SupersededError when the run is over or its bucket gone.
    """
    run = session.get(ReviewRun, run_id)
    bucket = None if run is None else session.get(Bucket, run.bucket_id)
    if run is None or bucket is None or run.state != ReviewRunState.RUNNING:
        raise SupersededError("the run is over", run_id=run_id)
    page = _page(session, run)
    if not page:
        return 0
    _plan(session, catalogue, run, bucket, page)
    run.cursor_id = page[-1].id
    session.flush()
    return len(page)


def plan_version(
    session: Session, catalogue: Catalogue, run: ReviewRun, bucket: Bucket, version: Version
) -> bool:
    """Make the review of one version in a locked run, whose cursor may be past it.

    False when it needs none, or has it already.
    """
    before = run.planned
    _plan(session, catalogue, run, bucket, [version])
    session.flush()
    return run.planned > before


def finish_run(session: Session, run_id: int) -> dict[str, Any]:
    """Note in a locked run that all its reviews are made; returns what the task answers."""
    run = session.get(ReviewRun, run_id)
    if run is None or run.state != ReviewRunState.RUNNING:
        raise SupersededError("the run is over", run_id=run_id)
    run.state = ReviewRunState.PLANNED
    run.ended_at = utc_clock()
    session.flush()
    return {"seen": run.seen, "planned": run.planned}


def _page(session: Session, run: ReviewRun) -> list[Version]:
    """Return the next versions by id. Each state is walked by itself: one index, from its place."""
    found: list[Version] = []
    for state in sorted(SERVED):
        statement = (
            sa.select(Version)
            .where(
                Version.bucket_id == run.bucket_id,
                Version.state == state,
                Version.id > run.cursor_id,
                Version.id <= run.until_id,
            )
            .order_by(Version.id)
            .limit(PAGE_VERSIONS)
        )
        found += session.scalars(by_index(statement, Version, "ix_versions_bucket"))
    return sorted(found, key=lambda version: version.id)[:PAGE_VERSIONS]


def _plan(
    session: Session,
    catalogue: Catalogue,
    run: ReviewRun,
    bucket: Bucket,
    page: Sequence[Version],
) -> None:
    policy = ReviewPolicy.model_validate(run.policy)
    passed, known = _passed(session, run, page), _known(session, run, page)
    region = region_of(session, bucket, "review")
    for version in page:
        if version.id in known:
            continue
        run.seen += 1
        if (version.sha256, policy.declared_key(version.content_type)) in passed:
            continue
        run.planned += 1
        _enqueue(session, catalogue, run, version, region)


def _known(session: Session, run: ReviewRun, page: Sequence[Version]) -> set[int]:
    """Return the versions that have their review in this run: they passed their first one late."""
    ids = [version.id for version in page]
    rows = session.scalars(
        sa.select(Review.version_id).where(Review.version_id.in_(ids), Review.run_id == run.id)
    )
    return set(rows)


def _passed(session: Session, run: ReviewRun, page: Sequence[Version]) -> set[tuple[str, str]]:
    rows = session.execute(
        sa.select(Verdict.sha256, Verdict.declared_type).where(
            Verdict.tenant_id == run.tenant_id,
            Verdict.sha256.in_({version.sha256 for version in page}),
            Verdict.policy_version == run.policy_version,
            Verdict.outcome == StepOutcome.PASS,
        )
    )
    return {(sha256, declared) for sha256, declared in rows}


def _enqueue(
    session: Session, catalogue: Catalogue, run: ReviewRun, version: Version, region: str
) -> None:
    review = Review(
        tenant_id=run.tenant_id,
        bucket_id=run.bucket_id,
        version_id=version.id,
        blob_id=version.blob_id,
        sha256=version.sha256,
        policy=run.policy,
        policy_version=run.policy_version,
        state=ReviewState.OPEN,
        created_at=utc_clock(),
        run_id=run.id,
    )
    session.add(review)
    session.flush()
    review.task_id = catalogue.tasks.enqueue(
        session,
        REVIEW_RECHECK,
        CheckReview(version_id=version.id, blob_id=version.blob_id, review_id=review.id),
        tenant_id=run.tenant_id,
        region=region,
        priority=PRIORITY,
        parent_id=run.task_id,
    ).id
