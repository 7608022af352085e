"""Errors as sentences and exit codes."""

from __future__ import annotations

import pymysql
import pytest
import sqlalchemy as sa

from services.cli.app import run
from services.cli.sentences import exit_code, sentence
from shared.core.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from shared.runtime.settings import SettingsError


def test_the_kind_of_an_error_is_its_exit_code() -> None:
    errors = (
        UnavailableError("x"),
        OSError(28, "No space left on device"),
        InvalidError("x"),
        SettingsError("x"),
        NotFoundError("x"),
        ConflictError("x"),
    )
    assert [exit_code(error) for error in errors] == [1, 1, 2, 2, 3, 4]


def test_a_reason_is_added_once() -> None:
    assert sentence(UnavailableError("it fails", reason="too hot")) == "it fails: too hot"
    assert sentence(UnavailableError("it fails: too hot", reason="too hot")) == "it fails: too hot"
    error = UnavailableError("the folder cannot be used")
    error.__cause__ = PermissionError(13, "Permission denied", "/folder")
    assert sentence(error) == "the folder cannot be used: Permission denied"
    error.__cause__ = ValueError("of no use to anybody")
    assert sentence(error) == "the folder cannot be used"


def test_what_drivers_say_is_told_without_numbers_statements_and_links() -> None:
    cause = pymysql.err.OperationalError(2003, "Can't connect to MySQL server on 'db'")
    error = sa.exc.OperationalError("SELECT secret FROM t", {}, cause)
    assert sentence(error) == "the database: Can't connect to MySQL server on 'db'"
    assert sentence(FileNotFoundError(2, "No such file", "x.bin")) == "x.bin: No such file"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Usage: blox"),
        (["nothing"], "No such command"),
        (["tasks", "show"], "Missing argument"),
        (["tasks", "show", "x"], "valid integer"),
        (["tasks", "list", "--limit", "0"], "greater than or equal to 1"),
        (["check", "--late-seconds", "-1"], "greater than or equal to 0"),
        (["holds", "release", str(2**63)], "less than or equal to 9223372036854775807"),
        (["holds", "place", "t", "b", "k", "--reason", "x" * 513], "1 to 512 characters"),
        (["losses", "--before", str(2**63)], "less than or equal to 9223372036854775807"),
        (["channels", "refusals", "--after", "-1"], "greater than or equal to 0"),
        (["restores", "start", "t", "b", "--prefix", "x" * 1025], "at most 1024 characters"),
        (
            ["restores", "start", "t", "b", "--prefix", "\udcff"],
            "unable to parse raw data as a unicode",
        ),
        (["demo", "/no/such/file"], "no such file: /no/such/file"),
        (["demo", "--work-in", "/no/such/folder"], "/no/such/folder cannot hold the demo"),
        (["check", "--directory", "/no/such/folder"], "there is no stack in /no/such/folder"),
    ],
)
def test_wrong_usage_is_told_and_ends_with_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    written = capsys.readouterr()
    assert words in written.err
    assert written.out == ""
    assert "Traceback" not in written.err


def test_help_and_a_fresh_key_end_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert run(["tasks", "retry", "--help"]) == 0
    assert run(["secret-key"]) == 0
    assert len(capsys.readouterr().out.splitlines()[-1]) == 44
