"""What becomes of a task after an answer other than success. Pure: no clock, no database.

The class of an error decides, never its text; a cancel that was requested outranks everything,
since its acknowledgement promised it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from dramatiq.threading import Interrupt

from shared.core.errors import (
    BloxError,
    CancelRequested,
    LeaseLost,
    PermanentError,
    ResourceBusy,
    ShuttingDown,
    SlotLost,
    StopError,
    SupersededError,
    ThrottledError,
)
from shared.core.outcomes import Fail, Retry, Snooze
from shared.outbox.policy import RetryPolicy
from shared.outbox.states import State

#: Seconds that a task may be put off for at most: a column cannot hold every number.
MAX_WAIT_SECONDS = 10 * 366 * 86400.0
#: Seconds that another side may make a task wait by what it says of itself; then it is asked again.
MAX_THROTTLE_SECONDS = 86400.0
#: Characters of a resource's name.
MAX_RESOURCE = 191
#: Codes under which a request to end a running task is kept in its row.
REQUEST_CODES = frozenset({"cancelled", "superseded"})


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Let another execution go on from the checkpoint, now and without counting an attempt."""

    reason: str = ""


#: What may come out of a handler, or of the process around it.
Answer: TypeAlias = Retry | Snooze | Fail | GiveBack | BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the verdict needs of the locked row and of its kind."""

    attempt: int
    max_attempts: int
    age_seconds: float
    cancel_requested: bool
    error_code: str | None
    error_detail: str | None
    policy: RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Where the task goes. `counted` says that this was an answer: `attempt` grows by one.

    `resource` is what a blocked task is parked on.
    """

    outcome: str
    state: State
    counted: bool = False
    wait_seconds: float = 0.0
    code: str | None = None
    detail: str | None = None
    resource: str | None = None


def normalize(answer: Answer, stop_error: StopError | None) -> Answer:
    """Return the answer that counts when an execution was told to stop while it ran.

    What a handler raises on its way out of a stop is that stop, however it wrapped it. An answer
    that has nothing to do with the stop stays: the handler was just as fast. A lost lease outranks
    it.
    """
    if isinstance(stop_error, LeaseLost):
        return stop_error
    if isinstance(answer, BaseException):
        for link in _chain(answer):
            if isinstance(link, Interrupt):
                return stop_error if stop_error is not None else answer
            if isinstance(link, StopError):
                return link
    return answer


def judge(
    answer: Answer, facts: Facts, *, draw: Callable[[], float] = random.random
) -> Verdict | None:
    """Return where the task goes after this answer; None when it is no longer ours to say."""
    if isinstance(answer, LeaseLost):
        return None
    if facts.cancel_requested:
        is_named = facts.error_code in REQUEST_CODES
        return Verdict(
            outcome="cancelled",
            state=State.CANCELLED,
            counted=True,
            code=facts.error_code if is_named else "cancelled",
            detail=facts.error_detail if is_named else None,
        )
    return _judge(answer, facts, draw)


def _judge(answer: Answer, facts: Facts, draw: Callable[[], float]) -> Verdict:
    match answer:
        case GiveBack(reason=reason):
            return Verdict(outcome="given_back", state=State.PENDING, detail=reason)
        case ShuttingDown() | SlotLost():
            return Verdict(outcome="given_back", state=State.PENDING, detail=str(answer))
        case Snooze(after_seconds=seconds, reason=reason, resource=str(resource)) if resource:
            return _parked(resource, seconds, reason)
        case ResourceBusy():
            return _parked(answer.resource, answer.after_seconds, str(answer))
        case Snooze(after_seconds=seconds, reason=reason):
            return Verdict(
                outcome="snooze",
                state=State.SCHEDULED,
                wait_seconds=_bounded(seconds),
                code="snoozed",
                detail=reason,
            )
        case Fail(code=code, detail=detail):
            return _failed(str(code), str(detail))
        case PermanentError():
            return _failed(answer.code, describe(answer))
        case SupersededError():
            return _cancelled("superseded", answer)
        case CancelRequested():
            return _cancelled("cancelled", answer)
        case Retry(after_seconds=seconds, reason=reason):
            return _retry(facts, seconds, "retry", reason, draw)
        case ThrottledError():
            asked = _bounded(answer.retry_after_seconds, MAX_THROTTLE_SECONDS)
            return _retry(facts, None, answer.code, describe(answer), draw, asked)
        case _:
            return _retry(facts, None, _code_of(answer), describe(answer), draw)


def parked_on(answer: object) -> tuple[str, float] | None:
    """Return the resource on which an answer parks its task, and for how long at most."""
    match answer:
        case Snooze(after_seconds=seconds, resource=str(resource)) if resource:
            return resource, seconds
        case ResourceBusy():
            return answer.resource, answer.after_seconds
        case _:
            return None


def describe(error: BaseException) -> str:
    """Return an error in one text: its class, its message, its facts."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, BloxError) and error.facts:
        facts = ", ".join(f"{name}={value!r}" for name, value in error.facts.items())
        text = f"{text} ({facts})"
    return text


def _retry(
    facts: Facts,
    seconds: float | None,
    code: str,
    detail: str,
    draw: Callable[[], float],
    at_least_seconds: float = 0.0,
) -> Verdict:
    attempt = facts.attempt + 1
    if facts.policy.is_spent(
        attempt, max_attempts=facts.max_attempts, age_seconds=facts.age_seconds
    ):
        return _failed(code, f"gave up after {attempt} attempts: {detail}")
    wait = facts.policy.wait_seconds(attempt, draw=draw) if seconds is None else seconds
    return Verdict(
        outcome="retry",
        state=State.SCHEDULED,
        counted=True,
        wait_seconds=max(_bounded(wait), at_least_seconds),
        code=code,
        detail=detail,
    )


def _parked(resource: str, seconds: float, reason: str) -> Verdict:
    return Verdict(
        outcome="parked",
        state=State.BLOCKED,
        wait_seconds=_bounded(seconds),
        code="parked",
        detail=reason,
        resource=resource[:MAX_RESOURCE],
    )


def _bounded(seconds: float, at_most: float = MAX_WAIT_SECONDS) -> float:
    # Not a number counts as none: comparisons with it are false.
    return min(max(0.0, seconds), at_most)


def _failed(code: str, detail: str) -> Verdict:
    return Verdict(outcome="failed", state=State.FAILED, counted=True, code=code, detail=detail)


def _cancelled(code: str, error: BaseException) -> Verdict:
    return Verdict(
        outcome="cancelled", state=State.CANCELLED, counted=True, code=code, detail=describe(error)
    )


def _code_of(error: BaseException) -> str:
    return error.code if isinstance(error, BloxError) else "exception"


def _chain(error: BaseException) -> list[BaseException]:
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return links
