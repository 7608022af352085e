"""How long deletions wait."""

from __future__ import annotations

import pytest

from services.delete.rules import snooze_seconds
from shared.catalog.erasing import LONGEST_WAIT_SECONDS, wait_after_failures


def test_waits_double_up_to_six_hours() -> None:
    assert [wait_after_failures(n) for n in (1, 2, 3)] == [30.0, 60.0, 120.0]
    assert wait_after_failures(11) == LONGEST_WAIT_SECONDS == 6 * 3600
    assert wait_after_failures(10_000) == LONGEST_WAIT_SECONDS


def test_failures_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="from 1"):
        wait_after_failures(0)


@pytest.mark.parametrize(("due", "expected"), [(-5, 1), (0.2, 1), (90, 90), (1e9, 21_600)])
def test_a_task_sleeps_until_something_is_due(due: float, expected: float) -> None:
    assert snooze_seconds(due) == expected
