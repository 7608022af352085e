"""A worker of the origin queue, its upstream, and a bucket that is filled from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.origins import OriginStand
from tests.support.upstream import Upstream


@pytest.fixture
def stand(blox_url: str, tmp_path: Path) -> Iterator[OriginStand]:
    made = OriginStand(blox_url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as server:
        yield server


@pytest.fixture
def bucket(stand: OriginStand, upstream: Upstream) -> int:
    bucket_id = stand.bucket()
    stand.fills(bucket_id, f"{upstream.url}/base", tries=2)
    return bucket_id
