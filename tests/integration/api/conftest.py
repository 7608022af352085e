"""The running application, one per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.api.stack import Stack, running_stack


@pytest.fixture
def stack(blox_url: str, redis_url: str, namespace: str, tmp_path: Path) -> Iterator[Stack]:
    """The application with usual limits, on SQLite and on MariaDB."""
    with running_stack(blox_url, redis_url, namespace, tmp_path) as running:
        yield running


@pytest.fixture
def tight_stack(blox_url: str, redis_url: str, namespace: str, tmp_path: Path) -> Iterator[Stack]:
    """The application with small limits."""
    with running_stack(
        blox_url,
        redis_url,
        namespace,
        tmp_path,
        max_object_bytes=100_000,
        max_backlog=3,
        max_json_bytes=10_000,
        body_idle_seconds=0.5,
    ) as running:
        yield running
