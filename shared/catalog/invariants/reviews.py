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
    StepOutcome,
    Verdict,
    Version,
    VersionState,
)
from shared.outbox.breach import Breach

_READABLE = tuple(sorted(SERVED))
_UNDECIDED = (ReviewState.OPEN, ReviewState.DOUBTFUL)


def review_breaches(session: Session) -> Iterator[Breach]:
    """Yield readable versions that did not pass, and reviews that nobody waits for."""
    yield from _not_passed(session)
    yield from _never_judged(session)
    yield from _without_review(session)
    yield from _open_for_nobody(session)


def _not_passed(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Version.id, Version.state, Review.state)
        .join(Review, Review.version_id == Version.id)
        .where(Version.state.in_(_READABLE), Review.state != ReviewState.PASSED)
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
        .outerjoin(Review, Review.version_id == Version.id)
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
        .outerjoin(Review, Review.version_id == Version.id)
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
            Review.state.in_(_UNDECIDED),
            sa.or_(Version.id.is_(None), Version.state != VersionState.REVIEWING),
        )
    )
    for review_id, review, version_id, state in session.execute(query):
        detail = f"{review}, but version {version_id} is {state or 'not there'}"
        yield Breach("reviews and versions wait together", f"review {review_id}", detail)
