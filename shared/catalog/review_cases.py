"""What there is to judge in a review, and what its reviewers have said so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import (
    Review,
    ReviewState,
    ReviewStep,
    StepOutcome,
    Verdict,
    Version,
    VersionState,
    utc_clock,
)
from shared.catalog.payloads import CheckReview
from shared.catalog.places import stored_places
from shared.catalog.review_policy import Decision, ReviewPolicy
from shared.catalog.rulings import REASON_CHARACTERS
from shared.catalog.verdicts import find_verdict
from shared.core.errors import SupersededError

_JUDGED = frozenset({StepOutcome.PASS, StepOutcome.REJECT, StepOutcome.DOUBTFUL})


@dataclass(frozen=True, slots=True)
class Step:
    """What one reviewer of a kind said: an outcome of `StepOutcome` and a sentence."""

    name: str
    outcome: str
    detail: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One version under review, with what is known already.

    `verdict` is an earlier decision on the same content under the same rules, None without one.
    Its bytes are in staging, or on channels: `places` are names of channels and keys there.
    `is_again`: it has passed before, and stays as it is until this review says otherwise.
    """

    review_id: int
    version_id: int
    tenant_id: str
    sha256: str
    size_bytes: int
    content_type: str
    staging_key: str | None
    policy: ReviewPolicy
    steps: Mapping[str, Step]
    verdict: Decision | None
    verdict_reason: str
    places: tuple[tuple[str, str], ...] = ()
    is_again: bool = False


def read_case(session: Session, payload: CheckReview) -> Case | None:
    """Return what a review task has to judge, None when it is decided or waits for a person.

    Raises SupersededError when the version does not wait for its review any more.
    """
    review = session.get(Review, payload.review_id)
    version = session.get(Version, payload.version_id)
    if review is None or version is None or review.version_id != version.id:
        raise SupersededError("the version is gone", version_id=payload.version_id)
    if review.state in (ReviewState.PASSED, ReviewState.REJECTED, ReviewState.DOUBTFUL):
        return None
    if version.state != VersionState.REVIEWING or review.state != ReviewState.OPEN:
        raise SupersededError(f"the version is {version.state}", version_id=version.id)
    return case_of(session, review, version)


def case_of(session: Session, review: Review, version: Version) -> Case:
    """Return a version under review, whatever its state."""
    policy = ReviewPolicy.model_validate(review.policy)
    verdict = find_verdict(
        session,
        tenant_id=version.tenant_id,
        sha256=version.sha256,
        policy=policy,
        content_type=version.content_type,
    )
    rows = session.scalars(sa.select(ReviewStep).where(ReviewStep.review_id == review.id))
    places = () if version.staging_key else stored_places(session, version.blob_id)
    return Case(
        review_id=review.id,
        version_id=version.id,
        tenant_id=version.tenant_id,
        sha256=version.sha256,
        size_bytes=version.size_bytes,
        content_type=version.content_type,
        staging_key=version.staging_key,
        policy=policy,
        steps={row.step: Step(row.step, row.outcome, row.detail, row.kind) for row in rows},
        verdict=None if verdict is None else _decision_of(verdict),
        verdict_reason="" if verdict is None else verdict.reason,
        places=tuple((place.channel, place.key) for place in places),
        is_again=review.run_id != 0,
    )


def record_steps(session: Session, review_id: int, steps: Iterable[Step]) -> None:
    """Keep what reviewers said; what was said before in the same step is replaced.

    A judgement of the content is not, by a step that could not look: that comes from an execution
    which has lost its task, and goes on until it finds out.
    """
    statement = sa.select(ReviewStep).where(ReviewStep.review_id == review_id)
    rows = session.scalars(statement.order_by(ReviewStep.id).with_for_update())
    known = {row.step: row for row in rows}
    for step in steps:
        row = known.get(step.name)
        if row is not None and row.outcome in _JUDGED and step.outcome not in _JUDGED:
            continue
        if row is None:
            row = ReviewStep(
                review_id=review_id, step=step.name, kind=step.kind, created_at=utc_clock()
            )
            session.add(row)
        row.outcome = step.outcome
        row.detail = step.detail[:REASON_CHARACTERS]
        row.ended_at = utc_clock()
    session.flush()


def _decision_of(verdict: Verdict) -> Decision:
    return Decision.PASS if verdict.outcome == StepOutcome.PASS else Decision.REJECT
