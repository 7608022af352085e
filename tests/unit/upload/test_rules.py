"""Which channel comes next, and what survives in the checkpoint."""

from __future__ import annotations

import json

import pytest

from services.upload.rules import (
    AllSpent,
    Candidate,
    Choice,
    OpenTry,
    Plan,
    TryLater,
    Use,
    WaitForBreaker,
    WaitForOperator,
    WaitForPlace,
    choose,
)

A, B = Candidate("a"), Candidate("b")
OPEN_A = Candidate("a", is_ready=False, opens_in_seconds=7.0)
OPEN_B = Candidate("b", is_ready=False, opens_in_seconds=3.0)
OFF_A, OFF_B = Candidate("a", is_enabled=False), Candidate("b", is_enabled=False)
FULL_A, FULL_B = Candidate("a", is_full=True), Candidate("b", is_full=True)
ON_B = OpenTry("b", 9, "k")
HALF_B = OpenTry("b", 9, "k", {"parts_done": 1})


@pytest.mark.parametrize(
    ("candidates", "tries", "current", "failed_now", "expected"),
    [
        ([A, B], {}, None, set(), Use("a")),
        ([B, A], {}, None, set(), Use("b")),
        ([A, B], {}, None, {"a"}, Use("b")),
        ([A, B], {}, None, {"a", "b"}, TryLater()),
        ([A, B], {"a": 2}, None, set(), Use("b")),
        ([A, B], {"a": 1, "b": 2}, None, {"a"}, TryLater()),
        ([A, B], {"a": 2, "b": 2}, None, set(), AllSpent()),
        ([A, B], {"a": 3, "b": 2}, None, {"a", "b"}, AllSpent()),
        ([OPEN_A, B], {}, None, set(), Use("b")),
        ([OPEN_A, OPEN_B], {}, None, set(), WaitForBreaker("b", 3.0)),
        ([OPEN_A, B], {"b": 2}, None, set(), WaitForBreaker("a", 7.0)),
        # A place is waited for at the first of those that are full.
        ([FULL_A, B], {}, None, set(), Use("b")),
        ([FULL_A, FULL_B], {}, None, set(), WaitForPlace("a")),
        ([FULL_A, FULL_B], {"a": 2}, None, set(), WaitForPlace("b")),
        ([OPEN_A, FULL_B], {}, None, set(), WaitForPlace("b")),
        ([A, FULL_B], {}, None, {"a"}, WaitForPlace("b")),
        ([A, FULL_B], {"b": 2}, None, {"a"}, TryLater()),
        ([FULL_A, OFF_B], {}, None, set(), WaitForPlace("a")),
        # What was sent is worth waiting for, a mere intent is not.
        ([A, FULL_B], {"b": 1}, HALF_B, set(), WaitForPlace("b")),
        ([A, FULL_B], {"b": 1}, ON_B, set(), Use("a")),
        # Its breaker opened by the failure just counted: the others are only behind breakers.
        ([OPEN_A, OPEN_B], {"a": 1}, None, {"a"}, WaitForBreaker("b", 3.0)),
        ([OPEN_A, B], {}, None, {"b"}, TryLater()),
        ([OFF_A, B], {}, None, set(), Use("b")),
        ([OFF_A, OFF_B], {}, None, set(), WaitForOperator()),
        ([OFF_A, B], {"b": 2}, None, set(), WaitForOperator()),
        ([], {}, None, set(), WaitForOperator()),
        # What was cut short goes on, also on the last try, but not on a channel that is off.
        ([A, B], {"b": 1}, ON_B, set(), Use("b")),
        ([A, B], {"b": 2}, ON_B, set(), Use("b")),
        ([A, OFF_B], {"b": 1}, ON_B, set(), Use("a")),
        ([A, OPEN_B], {"b": 1}, ON_B, set(), Use("a")),
    ],
)
def test_choose(
    candidates: list[Candidate],
    tries: dict[str, int],
    current: OpenTry | None,
    failed_now: set[str],
    expected: Choice,
) -> None:
    plan = Plan(tries=tries, current=current)
    assert choose(candidates, plan, failed_now=failed_now, tries_per_channel=2) == expected


def test_every_channel_gets_exactly_its_tries() -> None:
    plan, used = Plan(), []
    for attempt in range(10):
        failed: set[str] = set()
        while isinstance(
            choice := choose([A, B], plan, failed_now=failed, tries_per_channel=3), Use
        ):
            plan = plan.begun(OpenTry(choice.channel, 1, "k"), is_same_try=False).failed()
            failed.add(choice.channel)
            used.append(choice.channel)
        plan = Plan.load(json.loads(json.dumps(plan.dump())), attempt=attempt)
    assert used == ["a", "b"] * 3
    assert isinstance(choose([A, B], plan, failed_now=set(), tries_per_channel=3), AllSpent)


def test_a_try_that_goes_on_is_not_counted_again() -> None:
    plan = Plan().begun(OpenTry("a", 1, "k1"), is_same_try=False)
    plan = Plan.load(plan.progressed({"bytes_done": 5}).dump(), attempt=0)
    assert plan.current == OpenTry("a", 1, "k1", {"bytes_done": 5})
    plan = plan.begun(OpenTry("a", 2, "k2"), is_same_try=True)
    assert plan.tries == {"a": 1}


def test_a_manual_retry_starts_the_counts_anew() -> None:
    spent = Plan(tries={"a": 2, "b": 2}).spent()
    assert Plan.load(spent.dump(), attempt=0).tries == {}
    later = Plan(tries={"a": 1}, attempt=4)
    assert Plan.load(later.dump(), attempt=5).tries == {"a": 1}
    assert Plan.load(later.dump(), attempt=0).tries == {}


def test_no_checkpoint_is_a_fresh_plan() -> None:
    assert Plan.load(None, attempt=3) == Plan(attempt=3)
