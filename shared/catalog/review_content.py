"""The bytes under review for the reviewer that was asked: a link bound to one step, until its end.

Nobody else can read them: the link names no object, and ends with the step's answer.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.asking import OPEN_OUTCOMES
from shared.catalog.models import Review, ReviewState, ReviewStep, Version
from shared.catalog.places import stored_places
from shared.catalog.secret_box import SecretBox
from shared.core.errors import ConflictError, ForbiddenError

_PURPOSE = "blox-review-content-1"


@dataclass(frozen=True, slots=True)
class ReviewContent:
    """Content under review. `places` are names of channels, None for staging, and keys there."""

    size: int
    sha256: str
    places: tuple[tuple[str | None, str], ...]


def content_path(box: SecretBox, step_id: int, *, expires_at: int) -> str:
    """Return the path and query of a step's link; `expires_at` is in seconds since 1970."""
    signature = _signature(box, step_id, expires_at)
    return f"/v1/review-content/{step_id}?expires={expires_at}&signature={signature}"


def open_review_content(
    session: Session, box: SecretBox, step_id: int, *, expires_at: int, signature: str, now: float
) -> ReviewContent:
    """Return what a link shows.

    Raises ForbiddenError (`link_signature`, `link_expired`), and ConflictError (`review_over`) when
    the step has its answer.
    """
    expected = _signature(box, step_id, expires_at)
    if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
        raise ForbiddenError("the link was not made here in this form", code="link_signature")
    if now >= expires_at:
        raise ForbiddenError("the link has expired", code="link_expired")
    found = session.execute(
        sa.select(ReviewStep, Review, Version)
        .join(Review, Review.id == ReviewStep.review_id)
        .join(Version, Version.id == Review.version_id)
        .where(ReviewStep.id == step_id)
    ).one_or_none()
    if found is None:
        raise ConflictError("the review is over", code="review_over")
    step, review, version = found
    if step.outcome not in OPEN_OUTCOMES or review.state != ReviewState.OPEN:
        raise ConflictError("the review is over", code="review_over")
    places: tuple[tuple[str | None, str], ...]
    if version.staging_key is not None:
        places = ((None, version.staging_key),)
    else:
        places = tuple((one.channel, one.key) for one in stored_places(session, version.blob_id))
    return ReviewContent(version.size_bytes, version.sha256, places)


def _signature(box: SecretBox, step_id: int, expires_at: int) -> str:
    text = f"{_PURPOSE}:{step_id}:{expires_at}"
    return hmac.new(box.derive(_PURPOSE), text.encode(), hashlib.sha256).hexdigest()
