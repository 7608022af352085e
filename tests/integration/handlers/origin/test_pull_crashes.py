"""SIGKILL at every named step of a pull, and many that ask at once, on a database server."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from shared.catalog.invariants.origins import hop_breaches, origin_breaches
from shared.catalog.origins.pulling import NothingToPull, Pulling
from shared.core.clock import Deadline, utc_now
from shared.core.ids import new_id
from shared.fetch import FetchPolicy
from shared.storage.spec import ChannelSpec
from tests.integration.handlers.sweeping import passes, sweeper
from tests.servers.rgw import CephRGW
from tests.support.origins import SEGMENT_BYTES, OriginStand, crash
from tests.support.outbox import Thread
from tests.support.upstream import Upstream, answer, ranged

pytestmark = pytest.mark.databases("mariadb")

KILLED = 9
POLICY = FetchPolicy(allow=["127.0.0.1:*"])
#: Of several reads, so that stretches are kept on the way.
LARGE = os.urandom(SEGMENT_BYTES * 20 + 1000)
STEPS = [
    "origin.claimed",
    "origin.after_count",
    "origin.after_head",
    "origin.after_bytes",
    "origin.before_commit",
    "complete.before_commit",
    "complete.after_commit",
    "origin.after_commit",
    "origin.after_release",
]
LARGE_STEPS = ["origin.before_segment", "fenced.before_commit", "origin.after_segment"]
LARGE_STEPS += ["origin.after_join", "origin.before_commit", "origin.after_commit"]


def test_many_that_ask_at_once_begin_one(stand: OriginStand) -> None:
    bucket = stand.bucket()
    stand.fills(bucket, "http://127.0.0.1:9/")
    found: list[Pulling | NothingToPull] = []
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait(10)
        found.append(stand.begin(bucket, "same"))

    for thread in [Thread(ask) for _ in range(8)]:
        thread.join_answer()
    pulls = [one for one in found if isinstance(one, Pulling)]
    assert len(pulls) == 8
    assert len({one.pull_id for one in pulls}) == 1
    assert sum(one.created for one in pulls) == 1
    assert len(stand.waiting("origin")) == 1


def test_a_kill_at_every_step_leaves_one_version_and_nothing_else(
    stand: OriginStand, tmp_path: Path
) -> None:
    with Upstream() as upstream:
        for key in STEPS:
            upstream.routes[f"/{key}"] = answer(key.encode(), ETag=f'"{key}"')
        die_and_go_on(stand, tmp_path, upstream, STEPS)
        assert max(upstream.count(f"/{key}") for key in STEPS) == 2
        check_all(stand, {key: key.encode() for key in STEPS})


def test_a_kill_at_every_step_of_a_large_body(stand: OriginStand, tmp_path: Path) -> None:
    with Upstream() as upstream:
        for key in LARGE_STEPS:
            upstream.routes[f"/{key}"] = ranged(LARGE)
        die_and_go_on(stand, tmp_path, upstream, LARGE_STEPS)
        check_all(stand, dict.fromkeys(LARGE_STEPS, LARGE))
        resumed = {one.path for one in upstream.asked if "range" in one.headers}
        assert "/origin.after_segment" in resumed
        assert "/origin.before_segment" not in resumed


def test_a_kill_at_every_step_with_staging_in_a_bucket(
    stand: OriginStand, tmp_path: Path, rgw: CephRGW
) -> None:
    server = rgw.server
    spec = ChannelSpec(
        "staging",
        "s3",
        {"endpoint": server.endpoint, "bucket": f"b{new_id()[:20]}"},
        {"access_key": server.access_key, "secret_key": server.secret_key},
    )
    stand.stage_in(spec)
    stand.staging.prepare(deadline=Deadline(20))
    with Upstream() as upstream:
        for key in LARGE_STEPS:
            upstream.routes[f"/{key}"] = ranged(LARGE)
        die_and_go_on(stand, tmp_path, upstream, LARGE_STEPS, spec)
        check_all(stand, dict.fromkeys(LARGE_STEPS, LARGE))


def die_and_go_on(
    stand: OriginStand,
    root: Path,
    upstream: Upstream,
    steps: list[str],
    staging: ChannelSpec | None = None,
) -> None:
    """Let a process die in a pull at each step, bring it back as the lease scan does, and end it.

    The key of a pull is the step at which it dies.
    """
    bucket = stand.bucket()
    stand.fills(bucket, upstream.url, tries=3)
    pulls = {step: stand.trigger(bucket, step) for step in steps}
    url = stand.db.engine.url.render_as_string(hide_password=False)
    signals = crash(url, root, {one.task_id or 0: step for step, one in pulls.items()}, staging)
    assert set(signals.values()) == {KILLED}
    passes(sweeper(stand), 2)
    for pulling in pulls.values():
        assert pulling.task_id is not None
        if stand.state(pulling.task_id) != "completed":
            assert stand.state(pulling.task_id) == "running"
            stand.bench.set(pulling.task_id, state="pending", owner=None, lease_until=None)
            assert stand.work(pulling.task_id) == "completed"
        assert stand.pull_row(pulling.pull_id).state == "stored"


def check_all(stand: OriginStand, bodies: dict[str, bytes]) -> None:
    """Every key has one version with the right bytes; nothing is left over."""
    assert len(stand.versions()) == len(bodies)
    assert set(stand.work_all("upload")) == {"completed"}
    passes(sweeper(stand), 3)
    for version in stand.versions():
        assert stand.stored_bytes(version.id) in bodies.values()
        assert version.generation == 1
    assert stand.look(lambda session: list(origin_breaches(session, utc_now()))) == []
    assert stand.look(lambda session: list(hop_breaches(session, POLICY))) == []
    assert stand.segments() == []
    assert stand.staged_keys() == set()
    assert stand.waiting("origin") == stand.waiting("upload") == []
