from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from shared.storage.progress import MOST_PARTS, Plan, Progress


@given(st.integers(1, 10**14), st.integers(1, 10**9))
def test_the_parts_of_a_plan_adjoin_and_are_not_too_many(size: int, part_bytes: int) -> None:
    plan = Plan.of(size, part_bytes)
    numbers = plan.numbers()
    assert 1 <= len(numbers) <= MOST_PARTS
    assert plan.part_bytes >= part_bytes
    assert plan.offset(1) == 0
    last = numbers[-1]
    assert plan.offset(last) + plan.length(last) == size
    assert plan.length(last) > 0
    assert plan.length(last + 1) == 0
    for number in list(numbers[:3]) + list(numbers[-4:-1]):
        if number != last:
            assert plan.length(number) == plan.part_bytes
            assert plan.offset(number + 1) == plan.offset(number) + plan.part_bytes


def test_an_empty_whole_has_one_empty_part() -> None:
    plan = Plan.of(0, 16)
    assert list(plan.numbers()) == [1]
    assert plan.length(1) == 0


def test_progress_survives_a_checkpoint_and_stays_small() -> None:
    progress = Progress(upload_id="2~abc", part_bytes=2**24, parts_done=9999, bytes_done=2**37)
    text = json.dumps(progress.to_json())
    assert Progress.from_json(json.loads(text)) == progress
    assert len(text) < 200
