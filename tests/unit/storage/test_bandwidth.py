from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.storage.bandwidth import TokenBucket, wait_turn


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_and_the_rest_waits_its_time() -> None:
    clock = Clock()
    bucket = TokenBucket(1_000_000, clock=clock)
    assert bucket.take(250_000) == 0.0
    assert bucket.take(500_000) == pytest.approx(0.5)
    clock.now = 0.5
    assert bucket.take(0) == 0.0
    assert bucket.take(1_000_000) == pytest.approx(1.0)


def test_an_idle_line_saves_up_one_burst_only() -> None:
    clock = Clock()
    bucket = TokenBucket(1_000_000, clock=clock)
    clock.now = 1000.0
    assert bucket.take(250_000) == 0.0
    assert bucket.take(1_000) > 0


@given(
    st.lists(
        st.tuples(st.integers(0, 2_000_000), st.floats(0, 2, allow_nan=False)),
        min_size=1,
        max_size=50,
    )
)
def test_the_rate_is_never_exceeded_over_any_length_of_time(
    steps: list[tuple[int, float]],
) -> None:
    clock = Clock()
    bucket = TokenBucket(1_000_000, clock=clock)
    passed = 0
    for count, pause in steps:
        clock.now += pause
        wait_turn(bucket, count, lambda seconds: setattr(clock, "now", clock.now + seconds))
        passed += count
        assert passed <= 1_000_000 * clock.now + 250_000 + 1


def test_a_slow_line_still_passes_something_at_once() -> None:
    assert TokenBucket(1_000, clock=Clock()).take(64 * 1024) == 0.0


@pytest.mark.parametrize("rate", [0, -1])
def test_a_rate_must_be_positive(rate: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        TokenBucket(rate)
