"""One embedded stack for the tests that only look at it or kill single processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.supervisor import EmbeddedStack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    """A stack on SQLite with a private Redis; whoever stops a part of it starts it again."""
    with EmbeddedStack(
        Path(tmp_path_factory.mktemp("stack")),
        variables={
            "BLOX_HEALTH__ANSWER_SECONDS": "3",
            "BLOX_SCHEDULER__STATISTICS_SECONDS": "1",
            "BLOX_OUTBOX__REDIS_TIMEOUT_SECONDS": "1",
        },
    ) as stack:
        yield stack
