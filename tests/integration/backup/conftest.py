"""One worker's stand per test, with a bucket's backups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.backups import BackupStand


@pytest.fixture
def stand(blox_url: str, tmp_path: Path) -> Iterator[BackupStand]:
    """A worker."""
    made = BackupStand(blox_url, tmp_path)
    yield made
    made.close()
