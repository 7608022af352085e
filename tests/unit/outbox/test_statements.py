"""Every UPDATE of a task names the state that it expects, and goes by the primary key."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest

import shared.outbox.statements as package
from shared.outbox.dialect import MYSQL, SQLITE

#: Statements for tests that run tasks inline on SQLite, where nobody else is.
_NOT_HOT = {"inline"}


def _texts() -> list[tuple[str, str]]:
    found = []
    for module in pkgutil.iter_modules(package.__path__):
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")
        found += [
            (f"{module.name}.{name}", text)
            for name, text in vars(loaded).items()
            if name.isupper() and isinstance(text, str)
        ]
    return found


UPDATES = [
    (name, text)
    for name, text in _texts()
    if text.startswith("UPDATE tasks") and name.partition(".")[0] not in _NOT_HOT
]


@pytest.mark.parametrize(("name", "text"), UPDATES, ids=[name for name, _ in UPDATES])
def test_update_names_the_expected_state_and_goes_by_primary(name: str, text: str) -> None:
    where = text.partition(" WHERE ")[2]
    assert re.search(r"\bstate (=|IN)", where), name
    assert text.startswith("UPDATE tasks {by_primary}"), name
    assert re.match(r"id (=|IN)", where), name


@pytest.mark.parametrize(("name", "text"), UPDATES, ids=[name for name, _ in UPDATES])
def test_way_out_of_running_names_its_owner(name: str, text: str) -> None:
    changes, _, where = text.partition(" WHERE ")
    if "state = 'running'" not in where or name.startswith("finish."):
        # The finisher compares owner and fence of each row that it has locked.
        return
    assert "owner" in where, name
    assert "fence" in where or "owner IN" in where, name
    assert changes, name


@pytest.mark.parametrize(("name", "text"), _texts(), ids=[name for name, _ in _texts()])
def test_tokens_are_known_to_both_databases(name: str, text: str) -> None:
    for dialect in (MYSQL, SQLITE):
        assert "{" not in dialect.sql(text), name
