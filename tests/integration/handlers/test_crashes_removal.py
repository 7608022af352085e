"""SIGKILL at every named step of a deletion by prefix.

Afterwards everything is as if nobody had died: the same keys gone, each counted once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.catalog.holds import place_hold
from tests.integration.handlers.test_crashes import check_all, die_and_go_on
from tests.integration.handlers.test_delete_prefix import counts, removal, served, start, store
from tests.support.handlers import Stand

pytestmark = pytest.mark.databases("mariadb")

PREFIX_STEPS = [
    "prefix.claimed",
    "fenced.before_commit",
    "prefix.after_page",
    "prefix.before_commit",
    "complete.before_commit",
    "complete.after_commit",
    "prefix.after_commit",
]


@pytest.mark.parametrize("step", PREFIX_STEPS)
def test_delete_prefix(stand: Stand, tmp_path: Path, step: str) -> None:
    bucket = stand.bucket()
    store(stand, bucket, "a/0", "a/1", "a/2", "a/3", "b")
    stand.db.run_session(lambda session: place_hold(session, bucket, "a/1", reason="r"))
    made = start(stand, bucket, "a/")
    die_and_go_on(stand, tmp_path, made.task_id, step)
    row = removal(stand, made.id)
    assert (row.state, counts(row)) == ("completed", (3, 0, 1))
    assert served(stand, bucket, "a/0", "a/1", "a/2", "a/3", "b") == ["a/1", "b"]
    check_all(stand)
    assert len(stand.channels.keys("a")) == 2
