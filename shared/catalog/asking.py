"""The step of a reviewer that answers later: asked, waiting, answered or out of time.

Whoever changes such a step holds its row's lock and looks at it anew, so that of a callback, an
answer and the end of the wait exactly one counts.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import ReviewStep, StepOutcome, utc_clock, utc_now
from shared.catalog.rulings import REASON_CHARACTERS
from shared.core.ids import new_id

#: No answer yet: an answer may still come.
OPEN_OUTCOMES = (StepOutcome.WAITING, StepOutcome.RETRY)
#: How an answer came.
BY_RESPONSE, BY_POLL, BY_DEADLINE = "response", "poll", "deadline"
BY_CALLBACK = "callback:"


@dataclass(frozen=True, slots=True)
class Ask:
    """A step as it stands. `ask_id` is the same over all tries to deliver one question.

    `left_seconds` are those until nobody waits any more.
    """

    step_id: int
    ask_id: str
    outcome: str
    detail: str
    is_delivered: bool
    deadline_at: dt.datetime
    left_seconds: float

    @property
    def is_open(self) -> bool:
        """Tell whether there is no answer yet."""
        return self.outcome in OPEN_OUTCOMES


def lock_step(session: Session, step_id: int) -> ReviewStep | None:
    """Lock one step's row, None when there is none."""
    return session.scalars(
        sa.select(ReviewStep)
        .where(ReviewStep.id == step_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()


def lock_steps(session: Session, review_id: int) -> None:
    """Lock all steps of a review, by ascending id."""
    ids = session.scalars(sa.select(ReviewStep.id).where(ReviewStep.review_id == review_id))
    for step_id in sorted(ids):
        lock_step(session, step_id)


class AskStep:
    """Changes of one step as a worker makes them: `lock` before the task's row, then one of them.

    The step's row is made when it is missing.
    """

    def __init__(self, review_id: int, step: str, *, kind: str, deadline_seconds: float) -> None:
        self._review_id, self._step, self._kind = review_id, step, kind
        self._deadline_seconds = deadline_seconds
        self._row: ReviewStep | None = None

    def lock(self, session: Session) -> None:
        """Lock the row."""
        found = session.scalar(
            sa.select(ReviewStep.id).where(
                ReviewStep.review_id == self._review_id, ReviewStep.step == self._step
            )
        )
        if found is None:
            row = ReviewStep(
                review_id=self._review_id,
                step=self._step,
                kind=self._kind,
                outcome=StepOutcome.RETRY,
                detail="",
                created_at=utc_clock(),
            )
            session.add(row)
            # Refused when another execution was faster: the caller tries again and finds it.
            session.flush()
            found = row.id
        self._row = lock_step(session, found)

    def begin(self, session: Session) -> Ask:
        """Begin to wait, unless it is asked or answered already."""
        row = self._locked()
        if row.outcome in OPEN_OUTCOMES and row.ask_id is None:
            row.outcome = StepOutcome.WAITING
            row.ask_id = new_id()
            row.deadline_at = utc_now(self._deadline_seconds)
            session.flush()
        return _ask(session, row)

    def delivered(self, session: Session, ask_id: str) -> Ask:
        """Note that the question has arrived and the answer comes later."""
        row = self._locked()
        if self._waits_for(ask_id):
            row.outcome, row.detail = StepOutcome.WAITING, ""
            row.asked_at = utc_clock()
            session.flush()
        return _ask(session, row)

    def undelivered(self, session: Session, ask_id: str, detail: str) -> Ask:
        """Note why the question has not arrived; it is asked again."""
        row = self._locked()
        if self._waits_for(ask_id):
            row.outcome, row.detail = StepOutcome.RETRY, detail[:REASON_CHARACTERS]
            session.flush()
        return _ask(session, row)

    def answered(self, session: Session, ask_id: str, outcome: str, detail: str, by: str) -> Ask:
        """Write an answer; one that came before stays."""
        row = self._locked()
        if self._waits_for(ask_id):
            write_answer(session, row, outcome=outcome, detail=detail, by=by)
        return _ask(session, row)

    def has_answer(self, session: Session) -> bool:
        """Lock the row and tell whether an answer is there: the last look before a snooze."""
        self.lock(session)
        return self._locked().outcome not in OPEN_OUTCOMES

    def _waits_for(self, ask_id: str) -> bool:
        row = self._locked()
        return row.outcome in OPEN_OUTCOMES and row.ask_id == ask_id

    def _locked(self) -> ReviewStep:
        if self._row is None:
            raise AssertionError("a step is changed after its lock")
        return self._row


def write_answer(session: Session, row: ReviewStep, *, outcome: str, detail: str, by: str) -> None:
    """Write the answer into a locked row that has none."""
    row.outcome, row.detail = outcome, detail[:REASON_CHARACTERS]
    row.answered_by = by
    row.ended_at = utc_clock()
    session.flush()


def ask_again(session: Session, review_id: int) -> None:
    """Let the steps without an answer of their own be asked anew: a review that is retried."""
    lock_steps(session, review_id)
    session.execute(
        sa.update(ReviewStep)
        .where(
            ReviewStep.review_id == review_id,
            ReviewStep.outcome.in_([StepOutcome.ERROR, *OPEN_OUTCOMES]),
        )
        .values(
            outcome=StepOutcome.RETRY,
            ask_id=None,
            asked_at=None,
            deadline_at=None,
            answered_by=None,
            ended_at=None,
        )
        .execution_options(synchronize_session=False)
    )


def _ask(session: Session, row: ReviewStep) -> Ask:
    session.refresh(row)
    now = session.scalar(sa.select(utc_clock()))
    deadline_at = row.deadline_at or now
    assert now is not None
    assert deadline_at is not None
    return Ask(
        step_id=row.id,
        ask_id=row.ask_id or "",
        outcome=row.outcome,
        detail=row.detail,
        is_delivered=row.asked_at is not None,
        deadline_at=deadline_at,
        left_seconds=(deadline_at - now).total_seconds(),
    )
