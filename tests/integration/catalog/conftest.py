"""One catalogue per test, on SQLite and on MariaDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.catalogue import World


@pytest.fixture
def world(blox_url: str) -> Iterator[World]:
    """An empty catalogue whose grace is 0."""
    made = World(blox_url)
    yield made
    made.close()


@pytest.fixture
def bucket(world: World) -> int:
    """A bucket of the tenant acme, without review."""
    return world.bucket()
