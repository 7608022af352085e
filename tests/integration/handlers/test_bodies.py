"""Bodies cut short on their way into a bucket: aborted when their process is gone."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.catalog.invariants.leftovers import Ages, unfinished_bodies
from shared.core.clock import Deadline, utc_now
from shared.outbox.nodes import NodeWriter
from shared.storage.registry import Channels
from shared.storage.spec import ChannelSpec
from shared.storage.staging import Staging
from shared.storage.staging_objects import ObjectGround
from shared.storage.staging_writer import StagingWriter
from tests.integration.handlers.sweeping import passes, sweeper
from tests.servers.rgw import CephRGW
from tests.support.eventually import eventually
from tests.support.handlers import MIB, Stand

#: When an upload began is told truly by a real S3 only.
pytestmark = pytest.mark.databases("mariadb")

PART = 5 * MIB
AGES = Ages(key=0, upload=0, tombstone=0, staging=0)


@pytest.fixture
def stand(blox_url: str, tmp_path: Path, rgw: CephRGW) -> Iterator[Stand]:
    """A worker whose staging lies in a bucket."""
    made = Stand(blox_url, tmp_path)
    server = rgw.server
    spec = ChannelSpec(
        "staging",
        "s3",
        {"endpoint": server.endpoint, "bucket": f"b{uuid.uuid4().hex[:20]}"},
        {"access_key": server.access_key, "secret_key": server.secret_key},
    )
    channel = Channels().open(spec).channel
    made.staging = Staging(channel, ObjectGround(channel, node=lambda: made.bench.context.node))
    made.staging.prepare(deadline=Deadline(20))
    yield made
    made.close()


def cut_short(stand: Stand) -> StagingWriter:
    """Begin a body and send its first part."""
    writer = stand.staging.writer()
    writer.write(bytes(PART + 1))
    eventually(lambda: uploads(stand) == 1, 30)
    return writer


def uploads(stand: Stand) -> int:
    return len(list(stand.staging.open_uploads(deadline=Deadline(20))))


def breaches(stand: Stand) -> list[Any]:
    return stand.look(lambda session: list(unfinished_bodies(session, stand.staging, AGES)))


def test_upload_of_a_living_process_is_left_alone(stand: Stand) -> None:
    NodeWriter(stand.bench.context).write(role="producer")
    writer = cut_short(stand)
    passes(sweeper(stand), 3)
    assert uploads(stand) == 1
    assert breaches(stand) == []
    assert writer.finish().size == PART + 1
    assert uploads(stand) == 0


def test_upload_of_a_process_that_is_gone_is_aborted(stand: Stand) -> None:
    cut_short(stand)
    assert len(breaches(stand)) == 1
    sweeps = sweeper(stand, staging_age_seconds=3600.0)
    passes(sweeps, 1)
    assert uploads(stand) == 1, "one pass alone proves nothing"
    report = passes(sweeps, 1)
    assert report.counts["bodies"]["aborted"] == 1
    assert uploads(stand) == 0
    assert breaches(stand) == []


def test_young_upload_waits_whoever_wrote_it(stand: Stand) -> None:
    cut_short(stand)
    passes(sweeper(stand, min_age_seconds=3600.0), 3)
    assert uploads(stand) == 1


def test_upload_that_outlived_every_writer_is_aborted(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    NodeWriter(stand.bench.context).write(role="producer")
    cut_short(stand)
    later = utc_now() + dt.timedelta(seconds=86_400 + 120)
    monkeypatch.setattr("shared.catalog.sweeps.bodies.utc_now", lambda: later)
    passes(sweeper(stand, min_age_seconds=3600.0, staging_age_seconds=3600.0), 2)
    assert uploads(stand) == 0


def test_dry_run_aborts_nothing(stand: Stand) -> None:
    cut_short(stand)
    report = passes(sweeper(stand, dry_run=True), 3)
    assert report.counts["bodies"]["over"] == 1
    assert uploads(stand) == 1
