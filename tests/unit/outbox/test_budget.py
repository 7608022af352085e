"""One budget for all queues of a process: much ahead for the quick ones, and a turn for each."""

from __future__ import annotations

import pytest

from shared.outbox.budget import Budget
from tests.support.eventually import eventually
from tests.support.outbox import Thread


@pytest.fixture
def budget() -> Budget:
    """Two threads; "quick" may have eight executions waiting behind each, "slow" none."""
    made = Budget(threads=2, ahead_seconds=0.05, ahead_max=8)
    made.measure("quick", 0.001)
    made.measure("slow", 10.0)
    return made


def test_a_queue_of_slow_tasks_gets_no_more_than_idle_threads(budget: Budget) -> None:
    assert budget.take("slow", 0) == 2
    assert budget.take("slow", 0) == 0
    budget.give(1)
    assert budget.take("slow", 0) == 1


def test_a_queue_of_quick_tasks_is_claimed_far_ahead_and_in_bulk(budget: Budget) -> None:
    assert budget.take("quick", 0) == 18
    budget.give(8)
    assert budget.take("quick", 0) == 0, "a claim of few costs as much as one of many"
    budget.give(1)
    assert budget.take("quick", 0) == 9


def test_without_a_measurement_nothing_is_claimed_ahead(budget: Budget) -> None:
    assert budget.take("new", 0) == 2


def test_a_busy_quick_queue_leaves_a_turn_to_the_slow_one(budget: Budget) -> None:
    assert budget.take("quick", 0, is_owed=True) == 18
    slow = Thread(lambda: budget.take("slow", 30, is_owed=True))
    eventually(lambda: budget.waiting == ("slow",))
    for left in (9, 0):
        # What ends is not claimed anew while another waits for its turn.
        budget.give(9)
        assert budget.take("quick", 0, is_owed=True) == 0, left
    assert slow.join_answer() == 2
    assert (budget.held, budget.waiting) == (2, ())
    assert budget.take("quick", 0, is_owed=True) == 16


def test_turns_are_taken_in_the_order_of_asking(budget: Budget) -> None:
    assert budget.take("slow", 0) == 2
    others = []
    for name in ("first", "second"):
        others.append(Thread(lambda name=name: budget.take(name, 30, is_owed=True)))
        eventually(lambda name=name: budget.waiting[-1:] == (name,))
    budget.give(1)
    assert others[0].join_answer() == 1
    budget.give(1)
    assert others[1].join_answer() == 1
    assert budget.waiting == ()


def test_who_gives_up_waiting_leaves_its_turn_to_the_next(budget: Budget) -> None:
    assert budget.take("slow", 0) == 2
    impatient = Thread(lambda: budget.take("first", 0.3, is_owed=True))
    eventually(lambda: budget.waiting == ("first",))
    patient = Thread(lambda: budget.take("second", 30, is_owed=True))
    assert impatient.join_answer() == 0
    eventually(lambda: budget.waiting == ("second",))
    budget.give(2)
    assert patient.join_answer() == 2


def test_a_queue_that_is_owed_nothing_waits_for_those_that_are(budget: Budget) -> None:
    assert budget.take("slow", 0) == 2
    owed = Thread(lambda: budget.take("first", 30, is_owed=True))
    eventually(lambda: budget.waiting == ("first",))
    idle = Thread(lambda: budget.take("idle", 30))
    budget.give(1)
    assert owed.join_answer() == 1
    budget.give(1)
    assert idle.join_answer() == 1
