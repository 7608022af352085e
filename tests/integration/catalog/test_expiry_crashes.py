"""SIGKILL of a scheduler at each step of the expiry; another one goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from services.scheduler.expiry import ObjectExpiry
from shared.catalog.lifecycle import ExpiryRule
from shared.catalog.models import Expiry, LifecycleWalk
from tests.integration.catalog.test_expiries import job, pass_time, put, rules, run, there
from tests.support.catalogue import World

__all__ = ["job"]

pytestmark = pytest.mark.databases("mariadb")

ROOT = Path(__file__).resolve().parents[3]
KEYS = ["a/1", "a/2", "b"]


@pytest.mark.parametrize(
    ("step", "gone"), [("expiry.page_told", 0), ("expiry.written", 0), ("expiry.committed", 1)]
)
def test_another_scheduler_goes_on(
    world: World, job: ObjectExpiry, tmp_path: Path, step: str, gone: int
) -> None:
    bucket = rules(world)
    for key in KEYS:
        put(world, bucket, key, None)
    rules(world, ExpiryRule(prefix="a/", after_seconds=60))
    pass_time(world)
    url = world.engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-m", "tests.support.crash_expiry", url, str(tmp_path / "staging")]
    assert subprocess.run([*command, step], cwd=ROOT, timeout=60, check=False).returncode == -9
    assert there(world, bucket, *KEYS) == KEYS[gone:]
    assert run(job)["deleted"] == 2 - gone
    assert there(world, bucket, *KEYS) == ["b"]
    assert world.all(Expiry) == []
    assert world.all(LifecycleWalk) == []
    assert len(world.open_tasks("delete.blob")) == 2
    world.check()
