"""Answers that a reviewer sends later: verified, written, and the task woken, in one commit.

Whatever is not the first good answer in time changes nothing, and its sender is told so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import pydantic
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.asking import BY_CALLBACK, OPEN_OUTCOMES, lock_step, write_answer
from shared.catalog.context import Catalogue
from shared.catalog.models import Review, ReviewState, ReviewStep, utc_clock
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.reviewer_specs import WebhookSpec
from shared.catalog.rulings import REASON_CHARACTERS
from shared.catalog.secret_box import SecretBox
from shared.catalog.webhook_reviewers import find_door
from shared.core.errors import ConflictError, InvalidError, NotFoundError
from shared.core.failpoints import failpoint
from shared.core.webhooks import verify

#: Bytes of an answer; a reason is some hundred characters.
MAX_ANSWER_BYTES = 64 * 1024


class WebhookAnswer(pydantic.BaseModel):
    """What a reviewer says. `error`: it cannot judge this; the policy's fail mode decides."""

    outcome: Literal["pass", "reject", "doubtful", "error"]
    reason: str = pydantic.Field(default="", max_length=4 * REASON_CHARACTERS)


Answer = TypeVar("Answer", bound=WebhookAnswer)


class CallbackDocument(WebhookAnswer):
    """An answer that comes later. It names its step, which its signature covers: else whoever sees
    one signed answer could send it for every other question of that reviewer.
    """

    step_id: int


@dataclass(frozen=True, slots=True)
class CallbackAnswer:
    """What was written: now, or when the same message came before."""

    step_id: int
    outcome: str


def parse_answer(body: bytes) -> WebhookAnswer:
    """Read an answer. Raises InvalidError (`review_answer_invalid`) that says what is wrong."""
    return _parse(WebhookAnswer, body)


def _parse(document: type[Answer], body: bytes) -> Answer:
    if len(body) > MAX_ANSWER_BYTES:
        raise InvalidError(
            f"an answer has at most {MAX_ANSWER_BYTES} bytes", code="review_answer_invalid"
        )
    try:
        return document.model_validate_json(body)
    except pydantic.ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in fault["loc"]) or "body"
        raise InvalidError(f"{where}: {fault['msg']}", code="review_answer_invalid") from error


def accept_callback(
    session: Session,
    catalogue: Catalogue,
    step_id: int,
    *,
    headers: Mapping[str, str],
    body: bytes,
    box: SecretBox,
    now: float,
) -> CallbackAnswer:
    """Write a reviewer's answer and wake the task that waits for it, in the caller's transaction.

    `headers` have small-letter names; `now` is our clock in seconds. The same message again gets
    the same answer. Raises NotFoundError (`review_step_not_found`), UnauthorizedError for a
    signature that does not fit or is too old, InvalidError, and ConflictError for an answer that
    nobody waits for: `review_step_answered`, `review_over`, `review_step_late`.
    """
    step = session.get(ReviewStep, step_id)
    review = None if step is None else session.get(Review, step.review_id)
    if step is None or review is None:
        raise _unknown()
    message_id = verify(_secrets(session, box, review, step.step), headers, body, now=now)
    answer = _parse(CallbackDocument, body)
    if answer.step_id != step_id:
        raise InvalidError("the answer is for another step", code="review_step_mismatch")
    row = lock_step(session, step_id)
    if row is None:
        raise _unknown()
    by = BY_CALLBACK + message_id
    if row.answered_by == by:
        return CallbackAnswer(row.id, row.outcome)
    if row.outcome not in OPEN_OUTCOMES or row.ask_id is None:
        raise ConflictError(
            "the step has its answer already", code="review_step_answered", outcome=row.outcome
        )
    # Read after the step's lock: a review that is decided has left its steps behind.
    state = session.scalar(sa.select(Review.state).where(Review.id == review.id))
    if state != ReviewState.OPEN:
        raise ConflictError(f"the review is {state}", code="review_over", state=state)
    clock = session.scalar(sa.select(utc_clock()))
    if row.deadline_at is None or clock is None or row.deadline_at <= clock:
        raise ConflictError("the time for an answer is over", code="review_step_late")
    write_answer(session, row, outcome=answer.outcome, detail=answer.reason, by=by)
    failpoint("review.callback_written")
    if review.task_id is not None:
        catalogue.tasks.wake(session, review.task_id)
    return CallbackAnswer(row.id, row.outcome)


def _secrets(session: Session, box: SecretBox, review: Review, step: str) -> tuple[str, ...]:
    policy = ReviewPolicy.model_validate(review.policy)
    spec = next((one for one in policy.reviewers if one.name == step), None)
    if not isinstance(spec, WebhookSpec):
        raise _unknown()
    door = find_door(session, box, review.tenant_id, spec.reviewer)
    if door is None:
        raise _unknown()
    return door.secrets


def _unknown() -> NotFoundError:
    return NotFoundError("nobody was asked under this id", code="review_step_not_found")
