"""An outbox's parts on each database, without broker and scans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.outbox import Bench, Things
from tests.support.parking import Limit, Stage


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


@pytest.fixture
def stage(outbox_url: str, redis_url: str, namespace: str) -> Iterator[Stage]:
    made = Stage(outbox_url, redis_url, namespace, Limit(1), "node-1")
    yield made
    made.close()


@pytest.fixture
def twin(outbox_url: str, redis_url: str, namespace: str, stage: Stage) -> Iterator[Stage]:
    """Another process."""
    made = Stage(outbox_url, redis_url, namespace, stage.limit, "node-2")
    yield made
    made.close()
