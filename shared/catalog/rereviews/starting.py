"""Runs of re-reviews begin: asked for by somebody, or because a bucket's rules have changed.

A bucket has one run at a time. One under newer rules takes the place of those before it, and what
they have not decided by then is not decided any more.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.models import (
    Bucket,
    Review,
    ReviewRun,
    ReviewRunState,
    ReviewState,
    Version,
    by_index,
    utc_clock,
)
from shared.catalog.payloads import REVIEW_AGAIN, ReviewAgain
from shared.catalog.regions import region_of
from shared.catalog.rereviews.runs import PRIORITY, lock_run
from shared.catalog.review_policy import ReviewPolicy
from shared.core.errors import InvalidError, NotFoundError

#: Who has started a run that nobody asked for.
BY_CHANGE = "policy change"
_UNDECIDED = (ReviewState.OPEN, ReviewState.DOUBTFUL)


def start_run(
    session: Session, catalogue: Catalogue, tenant_id: str, name: str, *, by: str
) -> ReviewRun:
    """Begin to review a bucket's content again; one that is under way for these rules is returned.

    Raises NotFoundError, InvalidError (`bucket_not_reviewed`) and SwitchedOffError.
    """
    catalogue.need("review")
    bucket = session.scalars(
        sa.select(Bucket)
        .where(Bucket.tenant_id == tenant_id, Bucket.name == name)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()
    if bucket is None:
        raise NotFoundError("there is no such bucket", code="bucket_not_found")
    if bucket.review_policy is None:
        raise InvalidError("the bucket has no review policy", code="bucket_not_reviewed")
    policy = ReviewPolicy.model_validate(bucket.review_policy)
    supersede_runs(session, catalogue, bucket.id, besides=policy.version)
    return _begin(session, catalogue, bucket, policy, by=by)


def policy_changed(session: Session, catalogue: Catalogue, bucket: Bucket) -> ReviewRun | None:
    """Do what a locked bucket's rules say of their change, in the transaction that changes them.

    Runs under older rules end. Returns the run that begins, None where the policy leaves what is
    there, or nothing ever was. Where nobody serves reviews the run waits for somebody who does.
    """
    supersede_runs(session, catalogue, bucket.id, besides=bucket.review_policy_version)
    if bucket.review_policy is None:
        return None
    policy = ReviewPolicy.model_validate(bucket.review_policy)
    if policy.on_change == "leave" or not _has_versions(session, bucket.id):
        return None
    return _begin(session, catalogue, bucket, policy, by=BY_CHANGE)


def give_task(session: Session, catalogue: Catalogue, run_id: int) -> ReviewRun | None:
    """Give a run under way its task, if it has none and reviews are served.

    Returns the run, None when it is not under way any more.
    """
    run = lock_run(session, run_id)
    if run is None or run.state != ReviewRunState.RUNNING:
        return None
    bucket = session.get(Bucket, run.bucket_id)
    if bucket is None and run.task_id is None:
        # Deleted before anybody served reviews: no task will end it.
        run.state, run.error_code = ReviewRunState.CANCELLED, "bucket_gone"
        run.ended_at = utc_clock()
        session.flush()
        return None
    if run.task_id is None and bucket is not None and catalogue.serves("review"):
        run.task_id = catalogue.tasks.enqueue(
            session,
            REVIEW_AGAIN,
            ReviewAgain(run_id=run.id),
            tenant_id=run.tenant_id,
            region=region_of(session, bucket, "review"),
            priority=PRIORITY,
        ).id
        session.flush()
    return run


def supersede_runs(
    session: Session, catalogue: Catalogue, bucket_id: int, *, besides: str | None
) -> None:
    """End a locked bucket's runs that are under way, or have undecided reviews, for other rules.

    `besides` is the policy version whose runs stay. Their reviews find out by themselves, and the
    sweep ends those that wait.
    """
    own = sa.select(sa.literal(1)).where(
        Review.run_id == ReviewRun.id, Review.state.in_(_UNDECIDED)
    )
    # Not by the state: most that are undecided may be first reviews, of no run.
    undecided = by_index(own, Review, "ix_reviews_run").exists()
    query = sa.select(ReviewRun.id).where(
        ReviewRun.bucket_id == bucket_id,
        ReviewRun.state != ReviewRunState.SUPERSEDED,
        ReviewRun.policy_version != (besides or ""),
        sa.or_(ReviewRun.state == ReviewRunState.RUNNING, undecided),
    )
    task_ids: list[int] = []
    for run_id in session.scalars(query.order_by(ReviewRun.id)).all():
        run = lock_run(session, run_id)
        if run is None or run.state == ReviewRunState.SUPERSEDED:
            continue
        if run.state == ReviewRunState.RUNNING and run.task_id is not None:
            task_ids.append(run.task_id)
        run.state = ReviewRunState.SUPERSEDED
        run.error_code = "superseded"
        run.ended_at = run.ended_at or utc_clock()
        session.flush()
    if task_ids:
        catalogue.tasks.supersede(session, sorted(task_ids))


def _begin(
    session: Session, catalogue: Catalogue, bucket: Bucket, policy: ReviewPolicy, *, by: str
) -> ReviewRun:
    """Begin a run in a locked bucket, or return the one that is under way for this policy."""
    running = session.scalar(
        sa.select(ReviewRun.id).where(
            ReviewRun.bucket_id == bucket.id,
            ReviewRun.state == ReviewRunState.RUNNING,
            ReviewRun.policy_version == policy.version,
        )
    )
    if running is not None and (run := give_task(session, catalogue, running)) is not None:
        return run
    newest = session.scalar(
        sa.select(sa.func.max(Version.id)).where(Version.bucket_id == bucket.id)
    )
    run = ReviewRun(
        tenant_id=bucket.tenant_id,
        bucket_id=bucket.id,
        policy=policy.model_dump(mode="json"),
        policy_version=policy.version,
        state=ReviewRunState.RUNNING,
        until_id=newest or 0,
        started_by=by[:128],
        created_at=utc_clock(),
    )
    session.add(run)
    session.flush()
    give_task(session, catalogue, run.id)
    session.refresh(run)
    return run


def _has_versions(session: Session, bucket_id: int) -> bool:
    """Tell whether a bucket has or had content: also what is blocked may be released later."""
    found = sa.exists().where(Version.bucket_id == bucket_id)
    return session.scalar(sa.select(found)) is True
