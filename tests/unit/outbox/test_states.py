"""The table of transitions is complete, and the documentation shows it as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.states import PAGE, render
from shared.outbox.states import ACTIVE, TERMINAL, TRANSITIONS, State, is_legal


def test_the_page_is_generated_from_the_table() -> None:
    assert Path(PAGE).read_text() == render(), "run: python -m scripts.states"


def test_every_state_can_be_reached_and_every_active_one_left() -> None:
    reached = {move.target for move in TRANSITIONS}
    left = {move.source for move in TRANSITIONS}
    assert set(State) - reached == set()
    assert left >= ACTIVE


def test_only_a_manual_retry_leaves_an_end() -> None:
    leaving = {(move.actor, move.target) for move in TRANSITIONS if move.source in TERMINAL}
    assert leaving == {("user", State.PENDING), ("user", State.BLOCKED)}


def test_a_waiting_task_never_completes_without_running() -> None:
    assert [s for s in State if s is not State.RUNNING and is_legal(s, State.COMPLETED)] == []


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (State.COMPLETED, State.RUNNING),
        (State.PENDING, State.RUNNING),
        (State.SCHEDULED, State.DISPATCHED),
        (State.CANCELLED, State.COMPLETED),
        (None, State.RUNNING),
    ],
)
def test_what_is_not_in_the_table_is_illegal(source: State | None, target: State) -> None:
    assert not is_legal(source, target)
