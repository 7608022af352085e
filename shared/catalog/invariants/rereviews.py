"""Invariants of rules that have changed: what is there has passed them, or is on its way to it.

And of what such a change has blocked: its bytes are kept as long as somebody may release them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from shared.catalog.models import (
    SERVED,
    Blob,
    BlobRef,
    BlobState,
    Bucket,
    HolderKind,
    Review,
    ReviewRun,
    ReviewRunState,
    ReviewState,
    StepOutcome,
    Verdict,
    Version,
    VersionState,
    utc_clock,
)
from shared.catalog.review_policy import ReviewPolicy
from shared.outbox.breach import Breach
from shared.outbox.schema import tasks
from shared.outbox.states import ACTIVE

#: Under way, or given up by reviewers that failed: by the rules, that leaves the content as it is.
_LEFT = (ReviewState.OPEN, ReviewState.DOUBTFUL, ReviewState.FAILED)


def rereview_breaches(session: Session, swept: dt.datetime) -> Iterator[Breach]:
    """Yield buckets with content that nobody reviews under their rules, and lost quarantines.

    What ended after `swept` waits for a sweep.
    """
    yield from _unjudged(session)
    yield from _runs_without_task(session)
    yield from _two_runs(session)
    yield from _quarantine_lost(session)
    yield from _quarantine_of_nobody(session, swept)


def _unjudged(session: Session) -> Iterator[Breach]:
    """Find buckets that hold what has not passed under their present rules, with no run on it.

    A run under way has time; one that is over, and none at all, has not.
    """
    buckets = session.scalars(
        sa.select(Bucket).where(Bucket.review_policy_version.is_not(None)).order_by(Bucket.id)
    ).all()
    for bucket in buckets:
        if ReviewPolicy.model_validate(bucket.review_policy).on_change == "leave":
            continue
        run = session.scalars(
            sa.select(ReviewRun)
            .where(
                ReviewRun.bucket_id == bucket.id,
                ReviewRun.policy_version == bucket.review_policy_version,
            )
            .order_by(ReviewRun.id.desc())
            .limit(1)
        ).first()
        if run is not None and run.state == ReviewRunState.RUNNING:
            continue
        count, first = session.execute(_unjudged_in(bucket)).one()
        if count:
            why = "no run reviews them" if run is None else f"the run {run.id} is {run.state}"
            yield Breach(
                "what is readable has passed the present rules",
                f"bucket {bucket.name}",
                f"{count} versions have not, the first is {first}: {why}",
            )


def _unjudged_in(bucket: Bucket) -> sa.Select[int, int]:
    version = bucket.review_policy_version
    of_content = (Review.tenant_id == Version.tenant_id, Review.sha256 == Version.sha256)
    verdict = sa.exists().where(
        Verdict.tenant_id == Version.tenant_id,
        Verdict.sha256 == Version.sha256,
        Verdict.policy_version == version,
        Verdict.outcome == StepOutcome.PASS,
    )
    # A later decision on the same content may have overruled the verdict since.
    passed = sa.exists().where(
        *of_content, Review.policy_version == version, Review.state == ReviewState.PASSED
    )
    own = aliased(Review)
    left = sa.exists().where(
        own.version_id == Version.id, own.policy_version == version, own.state.in_(_LEFT)
    )
    return sa.select(sa.func.count(), sa.func.min(Version.id)).where(
        Version.bucket_id == bucket.id,
        Version.state.in_(sorted(SERVED)),
        ~verdict,
        ~left,
        ~passed,
    )


def _runs_without_task(session: Session) -> Iterator[Breach]:
    # One without any task has begun where nobody serves reviews: the sweep gives it one.
    query = (
        sa.select(ReviewRun.id, ReviewRun.task_id, tasks.c.state)
        .outerjoin(tasks, tasks.c.id == ReviewRun.task_id)
        .where(
            ReviewRun.state == ReviewRunState.RUNNING,
            ReviewRun.task_id.is_not(None),
            sa.or_(tasks.c.id.is_(None), tasks.c.state.not_in(sorted(ACTIVE))),
        )
    )
    for run_id, task_id, state in session.execute(query):
        detail = f"running, but its task {task_id} is {state or 'not there'}"
        yield Breach("unfinished rows have their task", f"run of re-reviews {run_id}", detail)


def _two_runs(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(ReviewRun.bucket_id, sa.func.count())
        .where(ReviewRun.state == ReviewRunState.RUNNING)
        .group_by(ReviewRun.bucket_id)
        .having(sa.func.count() > 1)
    )
    for bucket_id, count in session.execute(query):
        detail = f"{count} runs of re-reviews are under way"
        yield Breach("a bucket has one run of re-reviews", f"bucket {bucket_id}", detail)


def _quarantine_lost(session: Session) -> Iterator[Breach]:
    own = sa.and_(
        BlobRef.blob_id == Version.blob_id,
        BlobRef.holder_kind == HolderKind.QUARANTINE,
        BlobRef.holder_id == Version.id,
    )
    query = (
        sa.select(Version.id, Version.blob_id, Blob.state)
        .outerjoin(BlobRef, own)
        .outerjoin(Blob, Blob.id == Version.blob_id)
        .where(
            Version.state == VersionState.BLOCKED,
            Version.staging_key.is_(None),
            Version.staging_until > utc_clock(),
            sa.or_(BlobRef.id.is_(None), Blob.id.is_(None), Blob.state != BlobState.LIVE),
        )
    )
    for version_id, blob_id, state in session.execute(query):
        detail = f"in quarantine, but blob {blob_id} is {state or 'not there'}, or not referred to"
        yield Breach("what is held is there", f"version {version_id}", detail)


def _quarantine_of_nobody(session: Session, swept: dt.datetime) -> Iterator[Breach]:
    query = (
        sa.select(BlobRef.id, BlobRef.holder_id, Version.state)
        .outerjoin(Version, Version.id == BlobRef.holder_id)
        .where(
            BlobRef.holder_kind == HolderKind.QUARANTINE,
            sa.or_(
                Version.id.is_(None),
                Version.state != VersionState.BLOCKED,
                Version.blob_id != BlobRef.blob_id,
                Version.staging_until.is_(None),
                Version.staging_until < swept,
            ),
        )
    )
    for ref_id, version_id, state in session.execute(query):
        detail = f"of the quarantine of version {version_id}, which is {state or 'not there'}"
        yield Breach("references have their holder", f"reference {ref_id}", detail)
