"""An outbox's parts on each database, without broker and scans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.outbox import Bench, Things


@pytest.fixture
def bench(outbox_url: str, redis_url: str, namespace: str) -> Iterator[Bench]:
    """One process's parts on an empty database; register kinds with `bench.context.kinds`."""
    made = Bench(outbox_url, redis_url, namespace=namespace)
    yield made
    made.close()


@pytest.fixture
def other(outbox_url: str, redis_url: str, namespace: str, bench: Bench) -> Iterator[Bench]:
    """A second process on the same database, which knows no kinds."""
    made = Bench(outbox_url, redis_url, namespace=namespace, node="node-2")
    yield made
    made.close()


@pytest.fixture
def things(bench: Bench) -> Things:
    """Domain rows whose kind has hooks."""
    return Things(bench.engine)
