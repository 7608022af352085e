"""What the demo writes and concludes, without a stack."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from services.cli.demo.profile import shortages, variables
from services.cli.demo.screen import Screen
from services.cli.demo.watch import parts_done, states_of, until
from shared.core.errors import UnavailableError
from shared.runtime.problems import problems
from shared.runtime.settings import load_settings


def event(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data}


def moved(source: str | None, target: str) -> dict[str, Any]:
    return event(target, **{"from": source, "to": target})


def screen() -> tuple[Screen, io.StringIO]:
    text = io.StringIO()
    return Screen(Console(file=text, width=100, highlight=False, soft_wrap=True)), text


def test_states_are_those_of_the_events_and_the_row_without_repetitions() -> None:
    task = {
        "state": "completed",
        "events": [
            moved(None, "dispatching"),
            moved("dispatching", "running"),
            event("part", parts_done=1),
            moved("running", "scheduled"),
            moved("scheduled", "running"),
        ],
    }
    assert states_of(task) == ["dispatching", "running", "scheduled", "running", "completed"]
    assert states_of({"state": "pending", "events": []}) == ["pending"]


def test_parts_are_those_of_the_last_checkpoint() -> None:
    events = [event("part", parts_done=number) for number in (1, 2, 5)]
    assert parts_done({"events": [*events, event("resumed", parts_done=9)]}) == 5
    assert parts_done({"events": []}) == 0


def test_waiting_ends_with_the_answer_or_says_what_was_waited_for() -> None:
    answers = iter([None, 0, "there"])
    assert until(lambda: next(answers), "an answer", 5.0) == "there"
    with pytest.raises(UnavailableError, match="in vain for: the moon"):
        until(lambda: False, "the moon", 0.05)


def test_it_is_good_only_when_something_was_shown_and_all_of_it_held() -> None:
    shown, text = screen()
    assert not shown.is_good
    shown.judge("one", holds=True, result="fine", since=time.monotonic())
    assert shown.is_good
    shown.judge("two", holds=False, result="[not] fine", since=time.monotonic())
    assert not shown.is_good
    shown.table()
    written = text.getvalue()
    assert "DOES NOT HOLD  two: [not] fine" in written
    assert "ok fine" in written
    assert "FAILED [not] fine" in written


def test_moves_are_one_line_with_all_states() -> None:
    shown, text = screen()
    shown.move(7, "[a].bin", ["pending", "running", "completed"], "on channel first")
    line = text.getvalue()
    assert "task 7 [a].bin: pending → running → completed  on channel first\n" in line


def test_its_settings_can_be_used(tmp_path: Path) -> None:
    given = {
        **variables(),
        "BLOX_CHANNELS__FIRST__ROOT": str(tmp_path),
        "BLOX_CHANNELS__SECOND__ROOT": str(tmp_path),
        "BLOX_SECRET_KEY": "A" * 43 + "=",
    }
    assert problems(load_settings(given)).errors == ()


def test_a_machine_that_lacks_disk_or_memory_is_told(tmp_path: Path) -> None:
    assert shortages(tmp_path, disk_bytes=1, memory_bytes=1) == []
    disk, memory = shortages(tmp_path, disk_bytes=10**18, memory_bytes=10**18)
    assert disk.startswith(f"{tmp_path} has ")
    assert "the demo needs 1000000000.0 GB" in memory
