"""Invariants of reviewed buckets: nothing is readable there that has not passed."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from shared.catalog.models import (
    SERVED,
    Bucket,
    Review,
    ReviewState,
    ReviewStep,
    StepOutcome,
    Verdict,
    Version,
    VersionState,
)
from shared.outbox.breach import Breach
from shared.outbox.schema import tasks
from shared.outbox.states import ACTIVE

_READABLE = tuple(sorted(SERVED))
_UNDECIDED = (ReviewState.OPEN, ReviewState.DOUBTFUL)
_ANSWERED = (StepOutcome.PASS, StepOutcome.REJECT, StepOutcome.DOUBTFUL)
_WAITING = (StepOutcome.WAITING, StepOutcome.RETRY)
#: The review that let a version be readable at first.
_FIRST = sa.and_(Review.version_id == Version.id, Review.run_id == 0)


def review_breaches(session: Session) -> Iterator[Breach]:
    """Yield readable versions that did not pass, and reviews that nobody waits for."""
    yield from _not_passed(session)
    yield from _never_judged(session)
    yield from _without_review(session)
    yield from _open_for_nobody(session)
    yield from _again_without_task(session)
    yield from _waits_for_ever(session)
    yield from _answered_by_nobody(session)


def _not_passed(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Version.id, Version.state, Review.state)
        .join(Review, Review.version_id == Version.id)
        .where(
            Version.state.in_(_READABLE),
            sa.or_(
                sa.and_(Review.run_id == 0, Review.state != ReviewState.PASSED),
                # What passed before and could not be judged again stays; what was found bad, not.
                Review.state == ReviewState.REJECTED,
            ),
        )
    )
    for version_id, state, review in session.execute(query):
        detail = f"{state}, but its review is {review}"
        yield Breach("only what passed is readable", f"version {version_id}", detail)


def _never_judged(session: Session) -> Iterator[Breach]:
    """Find versions without a review of their own: their content has passed under the same rules.

    Only where the rules have not changed since: what came before them was judged by others.
    """
    other = aliased(Review)
    verdict = sa.exists().where(
        Verdict.tenant_id == Version.tenant_id,
        Verdict.sha256 == Version.sha256,
        Verdict.policy_version == Bucket.review_policy_version,
        Verdict.outcome == StepOutcome.PASS,
    )
    # A later decision on the same content may have overruled the verdict since.
    review = sa.exists().where(
        other.tenant_id == Version.tenant_id,
        other.sha256 == Version.sha256,
        other.policy_version == Bucket.review_policy_version,
        other.state == ReviewState.PASSED,
    )
    query = (
        sa.select(Version.id, Version.state, Bucket.name)
        .join(Bucket, Bucket.id == Version.bucket_id)
        .outerjoin(Review, _FIRST)
        .where(
            Bucket.review_policy_version.is_not(None),
            Version.state.in_(_READABLE),
            Version.created_at > Bucket.updated_at,
            Review.id.is_(None),
            ~verdict,
            ~review,
        )
    )
    for version_id, state, bucket in session.execute(query):
        detail = f"{state} in the reviewed bucket {bucket}, but nobody has judged its content"
        yield Breach("only what passed is readable", f"version {version_id}", detail)


def _without_review(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Version.id, Review.state)
        .outerjoin(Review, _FIRST)
        .where(
            Version.state == VersionState.REVIEWING,
            sa.or_(Review.id.is_(None), Review.state.not_in(_UNDECIDED)),
        )
    )
    for version_id, review in session.execute(query):
        detail = f"reviewing, but its review is {review or 'not there'}"
        yield Breach("reviews and versions wait together", f"version {version_id}", detail)


def _open_for_nobody(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Review.id, Review.state, Version.id, Version.state)
        .outerjoin(Version, Version.id == Review.version_id)
        .where(
            Review.run_id == 0,
            Review.state.in_(_UNDECIDED),
            sa.or_(Version.id.is_(None), Version.state != VersionState.REVIEWING),
        )
    )
    for review_id, review, version_id, state in session.execute(query):
        detail = f"{review}, but version {version_id} is {state or 'not there'}"
        yield Breach("reviews and versions wait together", f"review {review_id}", detail)


def _again_without_task(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Review.id, Review.task_id, tasks.c.state)
        .outerjoin(tasks, tasks.c.id == Review.task_id)
        .where(
            Review.run_id != 0,
            Review.state == ReviewState.OPEN,
            sa.or_(tasks.c.id.is_(None), tasks.c.state.not_in(sorted(ACTIVE))),
        )
    )
    for review_id, task_id, state in session.execute(query):
        detail = f"open again, but its task {task_id} is {state or 'not there'}"
        yield Breach("unfinished rows have their task", f"review {review_id}", detail)


def _waits_for_ever(session: Session) -> Iterator[Breach]:
    query = sa.select(ReviewStep.id, ReviewStep.outcome).where(
        ReviewStep.kind == "webhook",
        ReviewStep.outcome.in_(_WAITING),
        ReviewStep.ask_id.is_not(None),
        ReviewStep.deadline_at.is_(None),
    )
    for step_id, outcome in session.execute(query):
        yield Breach("every wait has a deadline", f"step {step_id}", f"{outcome} without an end")
    doubtful = sa.select(Review.id).where(
        Review.state == ReviewState.DOUBTFUL, Review.deadline_at.is_(None)
    )
    for review_id in session.scalars(doubtful):
        yield Breach("every wait has a deadline", f"review {review_id}", "doubtful without an end")


def _answered_by_nobody(session: Session) -> Iterator[Breach]:
    """Find answers of reviewers elsewhere that came neither in a response nor in a callback."""
    query = sa.select(ReviewStep.id, ReviewStep.outcome).where(
        ReviewStep.kind == "webhook",
        ReviewStep.outcome.in_(_ANSWERED),
        sa.or_(ReviewStep.answered_by.is_(None), ReviewStep.asked_at > ReviewStep.ended_at),
    )
    for step_id, outcome in session.execute(query):
        yield Breach("answers have a sender", f"step {step_id}", f"{outcome}, but nobody said so")
