"""One worker's stand per test, on SQLite and on MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.handlers import Stand
from tests.support.reviewer import Reviewer, running_reviewer


@pytest.fixture
def stand(blox_url: str, tmp_path: Path) -> Iterator[Stand]:
    """A worker."""
    made = Stand(blox_url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def other(blox_url: str, tmp_path: Path, stand: Stand) -> Iterator[Stand]:
    """Another worker process on the same database and channels."""
    made = Stand(blox_url, tmp_path, node="node-2")
    yield made
    made.close()


@pytest.fixture
def reviewer() -> Iterator[Reviewer]:
    """A reviewer elsewhere, that nobody has registered yet."""
    with running_reviewer() as made:
        yield made
