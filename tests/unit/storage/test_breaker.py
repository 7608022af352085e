from __future__ import annotations

import pytest

from shared.core.errors import LeaseLost
from shared.storage.breaker import Breaker
from shared.storage.errors import (
    BreakerOpen,
    ChannelFull,
    ChannelRefused,
    ChannelThrottled,
    ChannelUnavailable,
    DeadlinePassed,
    InvalidKey,
    ObjectMissing,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker("eu-1", failures=3, open_seconds=10.0, clock=clock)


def call(breaker: Breaker, error: BaseException | None = None) -> None:
    if error is None:
        with breaker.watch():
            return
    with pytest.raises(type(error)), breaker.watch():
        raise error


def fail(breaker: Breaker, times: int = 3) -> None:
    for _ in range(times):
        call(breaker, ChannelUnavailable())


def test_it_opens_on_failures_in_a_row_only(breaker: Breaker) -> None:
    fail(breaker, 2)
    call(breaker)
    fail(breaker, 2)
    assert breaker.state == "closed"
    assert breaker.ready()
    fail(breaker, 1)
    assert breaker.state == "open"
    assert not breaker.ready()


def test_open_it_lets_nothing_pass_and_says_for_how_long(breaker: Breaker, clock: Clock) -> None:
    fail(breaker)
    clock.now += 4
    with pytest.raises(BreakerOpen) as caught:
        call(breaker)
    assert caught.value.retry_after_seconds == pytest.approx(6.0)
    assert caught.value.facts["channel"] == "eu-1"
    assert breaker.retry_after_seconds() == pytest.approx(6.0)


def test_half_open_it_lets_one_call_pass(breaker: Breaker, clock: Clock) -> None:
    fail(breaker)
    clock.now += 10
    assert breaker.state == "half_open"
    assert breaker.ready()
    breaker.enter()
    assert not breaker.ready()
    with pytest.raises(BreakerOpen):
        breaker.enter()
    breaker.succeeded()
    assert breaker.state == "closed"
    assert breaker.retry_after_seconds() == 0.0


def test_a_failed_probe_opens_it_anew(breaker: Breaker, clock: Clock) -> None:
    fail(breaker)
    clock.now += 10
    fail(breaker, 1)
    assert breaker.state == "open"
    assert breaker.retry_after_seconds() == pytest.approx(10.0)


def test_after_closing_it_takes_all_failures_again_to_open(breaker: Breaker, clock: Clock) -> None:
    fail(breaker)
    clock.now += 10
    call(breaker)
    fail(breaker, 2)
    assert breaker.state == "closed"


def test_a_probe_that_never_reports_keeps_its_place_for_a_while_only(
    breaker: Breaker, clock: Clock
) -> None:
    fail(breaker)
    clock.now += 10
    breaker.enter()
    clock.now += 10
    assert breaker.ready()
    call(breaker)
    assert breaker.state == "closed"


def test_a_probe_that_says_nothing_lets_the_next_one_try_at_once(
    breaker: Breaker, clock: Clock
) -> None:
    fail(breaker)
    clock.now += 10
    call(breaker, DeadlinePassed())
    assert breaker.ready()
    call(breaker)
    assert breaker.state == "closed"


@pytest.mark.parametrize(
    "error", [ChannelUnavailable(), ChannelThrottled(), ChannelFull(), ChannelRefused()]
)
def test_what_shows_that_a_channel_is_unwell_counts(breaker: Breaker, error: BaseException) -> None:
    for _ in range(3):
        call(breaker, error)
    assert breaker.state == "open"


@pytest.mark.parametrize(
    "error", [ObjectMissing(), InvalidKey(), DeadlinePassed(), LeaseLost(), ValueError()]
)
def test_what_is_not_the_channels_fault_does_not_count(
    breaker: Breaker, error: BaseException
) -> None:
    for _ in range(10):
        call(breaker, error)
    assert breaker.state == "closed"


def test_what_says_nothing_does_not_interrupt_a_row_of_failures(breaker: Breaker) -> None:
    fail(breaker, 2)
    call(breaker, DeadlinePassed())
    fail(breaker, 1)
    assert breaker.state == "open"


def test_silence_begins_with_the_first_call_that_nothing_comes_of(
    breaker: Breaker, clock: Clock
) -> None:
    assert breaker.silent_seconds() == 0
    with breaker.watch():
        clock.now += 2
        assert breaker.silent_seconds() == 2
        with breaker.watch():
            clock.now += 2
            assert breaker.silent_seconds() == 4
        assert breaker.silent_seconds() == 0, "one was answered"
        clock.now += 1
        assert breaker.silent_seconds() == 1
    clock.now += 5
    assert breaker.silent_seconds() == 0, "nobody waits"


def test_only_a_sign_of_life_ends_a_silence(breaker: Breaker, clock: Clock) -> None:
    def call_in_vain(error: BaseException) -> None:
        with breaker.watch():
            breaker.moved()  # Into a buffer of ours, for all that is known.
            clock.now += 4
            raise error

    with pytest.raises(ChannelUnavailable):
        call_in_vain(ChannelUnavailable())
    clock.now += 4
    assert breaker.silent_seconds() == 8
    with pytest.raises(LeaseLost):
        call_in_vain(LeaseLost())
    assert breaker.silent_seconds() == 12
    call(breaker, ObjectMissing())
    assert breaker.silent_seconds() == 0


def test_bytes_that_move_are_no_silence(breaker: Breaker, clock: Clock) -> None:
    with breaker.watch():
        for _ in range(9):
            clock.now += 1
            breaker.moved()
        clock.now += 1
        assert breaker.silent_seconds() == 1


def test_what_takes_its_time_or_fails_at_once_is_no_silence(breaker: Breaker, clock: Clock) -> None:
    with breaker.watch(is_prompt=False):
        clock.now += 60
        assert breaker.silent_seconds() == 0
    fail(breaker, 1)
    clock.now += 60
    assert breaker.silent_seconds() == 0
