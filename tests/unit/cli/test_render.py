"""Tables and JSON."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from services.cli.render import Format, show_fields, show_rows, text_of

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)


def test_columns_are_as_wide_as_they_need_and_lines_have_no_blanks_at_their_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        {"id": 1, "name": "a long name that a terminal of eighty columns would have to fold" * 2},
        {"id": 22, "name": None},
    ]
    show_rows(rows, ("id", "name"), Format.TABLE, empty="nothing")
    assert capsys.readouterr().out.splitlines() == ["id  name", f"1   {rows[0]['name']}", "22"]


def test_wide_characters_take_two_places(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(
        [{"a": "日本", "b": 1}, {"a": "x", "b": 2}], ("a", "b"), Format.TABLE, empty="nothing"
    )
    assert capsys.readouterr().out.splitlines() == ["a     b", "日本  1", "x     2"]


def test_what_users_wrote_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2Jkey\nnext\x9b31m\u202e"
    show_rows([{"key": evil}], ("key",), Format.TABLE, empty="nothing")
    show_fields({"detail": evil}, Format.TABLE)
    written = capsys.readouterr().out
    assert "\\x1b[2Jkey\\nnext\\x9b31m\\u202e" in written
    assert all(char.isprintable() for char in written.replace("\n", ""))


def test_an_empty_list_is_a_word_or_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([], ("id",), Format.TABLE, empty="no tasks")
    show_rows([], ("id",), Format.JSON, empty="no tasks")
    assert capsys.readouterr().out == "no tasks\n[]\n"


def test_fields_leave_out_what_has_no_value_and_indent_what_has_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fields = {"id": 0, "owner": None, "error_detail": "one\ntwo", "payload": {"k": 1}, "list": []}
    show_fields(fields, Format.TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "id            0",
        "error_detail  one",
        "              two",
        'payload       {"k": 1}',
    ]


def test_times_are_utc_to_the_second_for_people_and_whole_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert text_of(MOMENT) == "2026-01-02 03:04:05"
    show_rows([{"at": MOMENT}], ("at",), Format.JSON, empty="nothing")
    assert json.loads(capsys.readouterr().out) == [{"at": "2026-01-02T03:04:05.678901Z"}]


def test_yes_and_no_are_words() -> None:
    assert [text_of(value) for value in (True, False, None, 0)] == ["yes", "no", "", "0"]
