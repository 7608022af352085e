"""Which source is asked next, what an answer means, and what survives in the checkpoint."""

from __future__ import annotations

import json

import pytest

from services.origin.rules import (
    AllSpent,
    Candidate,
    Choice,
    Partial,
    Plan,
    TryLater,
    Use,
    WaitForHost,
    choose,
    judge,
    patience_seconds,
    strong_etag,
)

A, B = Candidate(0), Candidate(1)
BUSY_A, BUSY_B = Candidate(0, opens_in_seconds=7.0), Candidate(1, opens_in_seconds=3.0)
HALF_B = Partial(1, '"x"', 100)


@pytest.mark.parametrize(
    ("candidates", "plan", "failed_now", "choice"),
    [
        ([A, B], Plan(), set(), Use(0)),
        ([A, B], Plan(), {0}, Use(1)),
        ([A, B], Plan(), {0, 1}, TryLater()),
        ([A, B], Plan(tries={0: 2}), set(), Use(1)),
        ([A, B], Plan(tries={0: 2, 1: 2}), set(), AllSpent()),
        ([A, B], Plan(barred=frozenset({0, 1})), set(), AllSpent()),
        ([A, B], Plan(barred=frozenset({0}), tries={1: 2}), set(), AllSpent()),
        ([A, B], Plan(partial=HALF_B), set(), Use(1)),
        ([A, B], Plan(partial=HALF_B), {1}, Use(0)),
        ([A, B], Plan(partial=HALF_B, tries={1: 2}), set(), Use(0)),
        ([BUSY_A, B], Plan(), set(), Use(1)),
        ([BUSY_A, BUSY_B], Plan(), set(), WaitForHost(1, 3.0)),
        ([BUSY_A, B], Plan(), {1}, TryLater()),
        ([BUSY_A, B], Plan(tries={1: 2}), set(), WaitForHost(0, 7.0)),
    ],
)
def test_choice(
    candidates: list[Candidate], plan: Plan, failed_now: set[int], choice: Choice
) -> None:
    assert choose(candidates, plan, failed_now=failed_now, tries_per_source=2) == choice


def test_a_checkpoint_brings_the_counts_back() -> None:
    plan = Plan(attempt=3).begun(0).begun(1).begun(1).uncounted(1).without(2).with_partial(HALF_B)
    again = Plan.load(json.loads(json.dumps(plan.dump())), attempt=4)
    assert (again.tries, again.barred, again.partial) == ({0: 1, 1: 1}, {2}, HALF_B)


def test_a_retry_by_hand_counts_anew_and_keeps_what_has_come() -> None:
    plan = Plan(attempt=3, tries={0: 2}, barred=frozenset({1}), partial=HALF_B)
    for dumped, attempt in ((plan.spent().dump(), 3), (plan.dump(), 0)):
        again = Plan.load(dumped, attempt=attempt)
        assert (again.tries, again.barred, again.partial) == ({}, frozenset(), HALF_B)


def test_meaning_of_answers() -> None:
    def meaning(status: int, headers: dict[str, str] | None = None) -> str:
        return judge(status, headers or {}, partial=None, start=0)

    assert meaning(200) == "store"
    assert [meaning(one) for one in (404, 410)] == ["missing"] * 2
    assert [meaning(one) for one in (401, 403)] == ["denied"] * 2
    assert [meaning(one) for one in (500, 502, 503, 504, 599)] == ["broken"] * 5
    assert meaning(429) == "busy"
    assert meaning(503, {"retry-after": "5"}) == "busy"
    others = (100, 201, 204, 206, 300, 302, 304, 400, 405, 416, 451, 600, 999)
    assert {meaning(one) for one in others} == {"error"}


@pytest.mark.parametrize(
    ("headers", "meaning"),
    [
        ({"etag": '"x"', "content-range": "bytes 40-99/100"}, "append"),
        ({"etag": '"y"', "content-range": "bytes 40-99/100"}, "restart"),
        ({"etag": 'W/"x"', "content-range": "bytes 40-99/100"}, "restart"),
        ({"content-range": "bytes 40-99/100"}, "restart"),
        ({"etag": '"x"', "content-range": "bytes 41-99/100"}, "restart"),
        ({"etag": '"x"', "content-range": "bytes 40-98/100"}, "restart"),
        ({"etag": '"x"', "content-range": "bytes 40-100/101"}, "restart"),
        ({"etag": '"x"', "content-range": "bytes 40-99/*"}, "restart"),
        ({"etag": '"x"', "content-range": "items 40-99/100"}, "restart"),
        ({"etag": '"x"'}, "restart"),
    ],
)
def test_a_range_continues_only_the_same_bytes(headers: dict[str, str], meaning: str) -> None:
    assert judge(206, headers, partial=HALF_B, start=40) == meaning
    assert judge(416, headers, partial=HALF_B, start=40) == "restart"
    assert judge(200, headers, partial=HALF_B, start=40) == "store"


def test_a_total_that_was_not_announced_is_taken_from_the_range() -> None:
    headers = {"etag": '"x"', "content-range": "bytes 40-120/121"}
    assert judge(206, headers, partial=Partial(1, '"x"', None), start=40) == "append"


def test_strong_etags() -> None:
    assert strong_etag({"etag": '"abc"'}) == '"abc"'
    for weak in ("", "abc", 'W/"abc"', '"a"b"', f'"{"x" * 600}"', '"a'):
        assert strong_etag({"etag": weak}) is None


def test_patience() -> None:
    def patience(text: str) -> float | None:
        return patience_seconds({"retry-after": text}, now=1_700_000_000)

    assert patience("120") == 120
    assert patience("999999999") == 900
    assert patience("Tue, 14 Nov 2023 22:14:20 GMT") == 60
    assert patience("Tue, 14 Nov 2000 22:14:20 GMT") == 0
    for nothing in ("", "-5", "1.5", "soon", "99999999999", "Tue, 99 Nov 2023 22:14:20 GMT"):
        assert patience(nothing) is None
