"""Texts that go beside a task row: cut, cleaned, and never in the way of an answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.core.errors import InvalidError
from shared.outbox.records import (
    END_EVENTS,
    MAX_CODE,
    MAX_DETAIL,
    OWN_EVENTS,
    clean_code,
    clean_text,
    progress_event,
    result_text,
)


@given(st.text())
def test_any_code_fits_its_column(code: str) -> None:
    cleaned = clean_code(code)
    assert cleaned is not None
    assert cleaned.isascii()
    assert len(cleaned) <= MAX_CODE


@given(st.text(st.characters(), max_size=50) | st.just("\ud800\x00" * 9000))
def test_any_text_can_be_stored(text: str) -> None:
    cleaned = clean_text(text)
    assert cleaned is not None
    assert cleaned.encode("utf-8").decode("utf-8") == cleaned
    assert "\x00" not in cleaned
    assert len(cleaned) <= MAX_DETAIL


def test_absent_texts_stay_absent() -> None:
    assert clean_code(None) is None
    assert clean_text(None) is None
    assert result_text(None, task_id=1) is None


def test_result_is_json_or_dropped() -> None:
    assert json.loads(result_text({"a": [1, "ü"]}, task_id=1) or "") == {"a": [1, "ü"]}
    assert result_text({"a": object()}, task_id=1) is None
    assert result_text({"a": float("inf")}, task_id=1) is None
    assert result_text({"a": "x" * 70_000}, task_id=1) is None
    loop: dict[str, object] = {}
    loop["self"] = loop
    assert result_text(loop, task_id=1) is None


@pytest.mark.parametrize("type_", [*sorted(OWN_EVENTS), "", "Upper", "a b", "ä", "x" * 33])
def test_progress_events_have_types_of_their_own(type_: str) -> None:
    with pytest.raises(InvalidError):
        progress_event(1, type_, {})


def test_progress_event_carries_its_data() -> None:
    assert progress_event(7, "part_sent", {"n": 1}) == (7, "part_sent", '{"n": 1}')


def test_ends_are_events_of_the_outbox() -> None:
    assert END_EVENTS < OWN_EVENTS
