"""What becomes of a task after each answer: the class decides, a cancel outranks all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.core.errors import (
    CancelRequested,
    ConflictError,
    CorruptError,
    LeaseLost,
    PermanentError,
    ResourceBusy,
    ShuttingDown,
    SlotLost,
    SupersededError,
    ThrottledError,
    TimeLimitExceeded,
    TransientError,
    UnavailableError,
)
from shared.core.outcomes import Fail, Retry, Snooze
from shared.outbox.policy import RetryPolicy
from shared.outbox.states import State, is_legal
from shared.outbox.stopping import Interrupted
from shared.outbox.verdicts import (
    Answer,
    Facts,
    GiveBack,
    describe,
    judge,
    normalize,
    parked_on,
)

PLAIN = RetryPolicy(base_seconds=2, factor=2, jitter="none", max_attempts=12)

ANSWERS: list[Answer] = [
    Retry(),
    Retry(after_seconds=5, reason="r"),
    Snooze(3),
    Snooze(3, resource="printer"),
    ResourceBusy(resource="printer"),
    SlotLost(),
    Fail("code"),
    GiveBack(),
    TransientError(),
    ThrottledError(retry_after_seconds=9),
    UnavailableError(),
    PermanentError(),
    CorruptError(),
    SupersededError(),
    ConflictError(),
    CancelRequested(),
    TimeLimitExceeded(),
    ShuttingDown(),
    ValueError("x"),
    MemoryError(),
    KeyboardInterrupt(),
]


def _facts(**changes: object) -> Facts:
    values: dict[str, object] = {
        "attempt": 0,
        "max_attempts": 12,
        "age_seconds": 0.0,
        "cancel_requested": False,
        "error_code": None,
        "error_detail": None,
        "policy": PLAIN,
    }
    return Facts(**{**values, **changes})  # type: ignore[arg-type]


def _waits(answer: Answer, policy: RetryPolicy, *, draw: float = 0.0) -> list[float]:
    verdicts = [
        judge(answer, _facts(attempt=attempt, policy=policy), draw=lambda: draw)
        for attempt in range(5)
    ]
    return [verdict.wait_seconds for verdict in verdicts if verdict is not None]


def test_jitter_none_shows_exactly_two_four_eight() -> None:
    assert _waits(TransientError(), PLAIN)[:3] == [2, 4, 8]
    assert _waits(Retry(), PLAIN) == [2, 4, 8, 16, 32]


def test_cap_and_jitter_bound_the_wait() -> None:
    capped = RetryPolicy(base_seconds=2, cap_seconds=10, jitter="none")
    assert _waits(Retry(), capped) == [2, 4, 8, 10, 10]
    equal = RetryPolicy(base_seconds=2, jitter="equal")
    assert _waits(Retry(), equal, draw=0.0) == [1, 2, 4, 8, 16]
    assert _waits(Retry(), equal, draw=1.0) == [2, 4, 8, 16, 32]
    full = RetryPolicy(base_seconds=2, jitter="full")
    assert _waits(Retry(), full, draw=0.0) == [0] * 5
    assert _waits(Retry(), full, draw=0.5) == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    ("answer", "state", "counted", "code"),
    [
        (Retry(), State.SCHEDULED, True, "retry"),
        (TransientError(), State.SCHEDULED, True, "transient"),
        (UnavailableError(), State.SCHEDULED, True, "unavailable"),
        (TimeLimitExceeded(), State.SCHEDULED, True, "timeout"),
        (ValueError(), State.SCHEDULED, True, "exception"),
        (ConflictError(), State.SCHEDULED, True, "conflict"),
        (Snooze(3), State.SCHEDULED, False, "snoozed"),
        (Fail("bounced"), State.FAILED, True, "bounced"),
        (PermanentError(), State.FAILED, True, "permanent"),
        (CorruptError(), State.FAILED, True, "corrupt"),
        (SupersededError(), State.CANCELLED, True, "superseded"),
        (CancelRequested(), State.CANCELLED, True, "cancelled"),
        (ShuttingDown(), State.PENDING, False, None),
        (GiveBack(), State.PENDING, False, None),
    ],
)
def test_class_of_the_answer_decides(
    answer: Answer, state: State, counted: bool, code: str | None
) -> None:
    verdict = judge(answer, _facts())
    assert verdict is not None
    assert (verdict.state, verdict.counted, verdict.code) == (state, counted, code)


def test_nothing_is_written_after_a_lost_lease() -> None:
    assert judge(LeaseLost(), _facts()) is None
    assert judge(LeaseLost(), _facts(cancel_requested=True)) is None


def test_last_attempt_fails_with_the_code_of_its_error() -> None:
    for answer, code in ((Retry(), "retry"), (TimeLimitExceeded(), "timeout")):
        verdict = judge(answer, _facts(attempt=11))
        assert verdict is not None
        assert (verdict.state, verdict.code) == (State.FAILED, code)
        assert (verdict.detail or "").startswith("gave up after 12 attempts")
    verdict = judge(TransientError(), _facts(attempt=2, max_attempts=3))
    assert verdict is not None
    assert verdict.state is State.FAILED


def test_task_that_is_too_old_is_not_tried_again() -> None:
    policy = RetryPolicy(give_up_after_seconds=86400)
    young = judge(TransientError(), _facts(policy=policy, age_seconds=86399))
    old = judge(TransientError(), _facts(policy=policy, age_seconds=86400))
    assert young is not None
    assert old is not None
    assert (young.state, old.state) == (State.SCHEDULED, State.FAILED)


def test_throttled_waits_at_least_what_was_asked() -> None:
    assert _waits(ThrottledError(retry_after_seconds=9), PLAIN) == [9, 9, 9, 16, 32]
    assert _waits(Retry(after_seconds=1), PLAIN) == [1] * 5
    assert _waits(Retry(after_seconds=-1), PLAIN) == [0] * 5


@pytest.mark.parametrize("answer", ANSWERS, ids=repr)
def test_requested_cancel_outranks_every_answer(answer: Answer) -> None:
    verdict = judge(answer, _facts(cancel_requested=True, error_code="superseded"))
    assert verdict is not None
    assert (verdict.state, verdict.code) == (State.CANCELLED, "superseded")
    verdict = judge(answer, _facts(cancel_requested=True, error_code="an old error"))
    assert verdict is not None
    assert (verdict.state, verdict.code) == (State.CANCELLED, "cancelled")


@given(
    st.sampled_from(ANSWERS),
    st.integers(0, 20),
    st.integers(1, 20),
    st.floats(0, 1e7),
    st.booleans(),
)
def test_every_verdict_is_a_legal_way_out_of_running(
    answer: Answer, attempt: int, max_attempts: int, age_seconds: float, cancelled: bool
) -> None:
    facts = _facts(
        attempt=attempt,
        max_attempts=max_attempts,
        age_seconds=age_seconds,
        cancel_requested=cancelled,
        policy=RetryPolicy(give_up_after_seconds=1e6),
    )
    verdict = judge(answer, facts)
    assert verdict is not None
    assert is_legal(State.RUNNING, verdict.state)
    assert verdict.state is not State.COMPLETED
    assert verdict.wait_seconds >= 0
    # An attempt is counted by a retry and by an end, and by nothing else.
    is_end = verdict.state in (State.FAILED, State.CANCELLED)
    assert verdict.counted == (verdict.outcome == "retry" or is_end)


def _raised(error: BaseException, *, handling: BaseException) -> BaseException:
    """Return `error` as it looks when it was raised while `handling` was being handled."""
    error.__context__ = handling
    return error


def test_error_raised_on_the_way_out_of_a_stop_is_the_stop() -> None:
    stop = ShuttingDown()
    assert normalize(_raised(RuntimeError("while cleaning up"), handling=stop), stop) is stop
    late = _raised(OSError("in a finally block"), handling=Interrupted())
    assert normalize(late, stop) is stop
    twice = _raised(ValueError("in another"), handling=late)
    assert normalize(twice, stop) is stop
    # "from None" says that the one has nothing to do with the other.
    twice.__suppress_context__ = True
    assert normalize(twice, stop) is twice
    limit = TimeLimitExceeded()
    assert normalize(Interrupted(), limit) is limit
    assert isinstance(normalize(Interrupted(), None), Interrupted)


def test_answer_that_has_nothing_to_do_with_the_stop_stays() -> None:
    failed = PermanentError()
    assert normalize(failed, ShuttingDown()) is failed
    assert normalize(Snooze(1), TimeLimitExceeded()) == Snooze(1)
    lost = LeaseLost()
    assert normalize(failed, lost) is lost
    assert normalize(Retry(), lost) is lost


def test_description_holds_class_message_and_facts() -> None:
    error = UnavailableError("no answer", channel="eu-1", status=503)
    assert describe(error) == "UnavailableError: no answer (channel='eu-1', status=503)"
    assert describe(ValueError("x")) == "ValueError: x"


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (Snooze(0, "full", resource="printer"), 0),
        (Snooze(7, "full", resource="printer"), 7),
        (ResourceBusy("full", resource="printer"), 0),
        (ResourceBusy("full", resource="printer", after_seconds=7), 7),
    ],
)
def test_busy_resource_parks_without_an_attempt(answer: Answer, seconds: float) -> None:
    verdict = judge(answer, _facts(attempt=11, max_attempts=12, age_seconds=1e9))
    assert verdict is not None
    assert (verdict.state, verdict.counted, verdict.wait_seconds) == (State.BLOCKED, False, seconds)
    assert (verdict.resource, verdict.code, verdict.detail) == ("printer", "parked", "full")
    assert parked_on(answer) == ("printer", seconds)


def test_nothing_to_wait_for_parks_nobody() -> None:
    verdict = judge(Snooze(7, resource=""), _facts())
    assert verdict is not None
    assert (verdict.state, verdict.resource) == (State.SCHEDULED, None)
    assert parked_on(Snooze(7, resource="")) is None


def test_lost_place_gives_back() -> None:
    verdict = judge(SlotLost(), _facts())
    assert verdict is not None
    assert (verdict.state, verdict.counted) == (State.PENDING, False)
