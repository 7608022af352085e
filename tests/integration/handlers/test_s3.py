"""The three protocols on a real S3, with channels from the catalogue's own table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from services.delete import handlers as deleting
from services.upload import handlers as uploading
from shared.catalog.channel_catalogue import ChannelCatalogue
from shared.catalog.channels import ChannelInput, load_channels, put_channel
from shared.catalog.secret_box import SecretBox
from shared.catalog.sweeps.context import SweepContext, SweepLimits
from shared.catalog.sweeps.sweeper import Sweeper
from shared.core.clock import Deadline
from shared.core.errors import ShuttingDown
from shared.core.ids import new_id
from shared.storage.registry import prepare_channel
from tests.servers.ports import free_port
from tests.servers.rgw import CephRGW
from tests.support.eventually import eventually
from tests.support.handlers import MIB, Stand
from tests.support.outbox import Thread

pytestmark = pytest.mark.databases("mariadb")

PART_BYTES = 5 * MIB
LARGE = os.urandom(3 * PART_BYTES + 17)


class S3Stand(Stand):
    """A worker with an S3 channel, `live`, and one that nobody serves, `dead`."""

    def use(self, rgw: CephRGW) -> None:
        """Put the channels into the table, and let the handlers find them there."""
        secrets = SecretBox(SecretBox.generate_key())
        server = rgw.server
        settings = {
            "bucket": f"blox-{new_id()[:12]}",
            "region": server.region,
            "part_bytes": PART_BYTES,
            "parallel_parts": 1,
            "bandwidth_bytes_per_second": 20 * MIB,
        }
        credentials = {"access_key": server.access_key, "secret_key": server.secret_key}
        endpoints = {"dead": f"http://127.0.0.1:{free_port()}", "live": server.endpoint}
        for name, endpoint in endpoints.items():
            channel = ChannelInput(
                name=name,
                kind="s3",
                settings={**settings, "endpoint": endpoint},
                credentials=credentials,
            )
            self.db.run_session(partial(put_channel, channel=channel, secrets=secrets))
        stored = self.look(lambda session: load_channels(session, secrets))
        prepare_channel(stored["live"].spec, deadline=Deadline(20))
        self.s3 = ChannelCatalogue(self.db.engine, secrets)
        self.upload = uploading.Deps(
            db=self.db, catalogue=self.catalogue, channels=self.s3, staging=self.staging
        )
        self.delete = deleting.Deps(db=self.db, channels=self.s3)

    def keys_on_s3(self) -> list[str]:
        """Return what is on the working channel."""
        return [entry.key for entry in self.s3.get("live").list(deadline=Deadline(20))]

    def uploads_on_s3(self) -> int:
        """Return how many uploads are open there."""
        return len(list(self.s3.get("live").list_uploads(deadline=Deadline(20))))


@pytest.fixture
def s3(blox_url: str, tmp_path: Path) -> Iterator[S3Stand]:
    made = S3Stand(blox_url, tmp_path)
    yield made
    made.close()


def test_failover_resume_and_deletion(s3: S3Stand, rgw: CephRGW) -> None:
    s3.use(rgw)
    bucket = s3.bucket(channels=["dead", "live"])
    put = s3.put(bucket, "large", LARGE, "application/octet-stream")
    execution = s3.claim(put.task_id)
    worker = Thread(lambda: s3.run(execution))
    eventually(lambda: "part" in s3.event_types(put.task_id), 60)
    execution.stop(ShuttingDown("the pod goes away"))
    assert worker.join_answer() == "pending"
    checkpoint = s3.task(put.task_id)["checkpoint"]
    assert checkpoint["tries"] == {"dead": 1, "live": 1}
    assert checkpoint["current"]["progress"]["parts_done"] >= 1

    assert s3.work(put.task_id) == "completed"
    result = s3.task(put.task_id)["result"]
    assert (result["channel"], result["parts_kept"] >= 1) == ("live", True)
    assert result["parts_kept"] + result["parts_sent"] == 4
    (location,) = [one for one in s3.locations() if one.state == "stored"]
    with s3.s3.get("live").get(location.key, deadline=Deadline(30)) as chunks:
        assert b"".join(chunks) == LARGE

    s3.remove(bucket, "large")
    assert s3.work_all("delete") == ["scheduled"]
    # The dead channel's intent waits for it; the bytes are gone.
    assert s3.keys_on_s3() == []
    assert {one.channel: one.state for one in s3.locations()} == {
        "dead": "delete_failed",
        "live": "tombstone",
    }


def test_open_upload_of_a_deleted_object_is_aborted_by_the_sweep(s3: S3Stand, rgw: CephRGW) -> None:
    s3.use(rgw)
    bucket = s3.bucket(channels=["live"])
    put = s3.put(bucket, "large", LARGE, "application/octet-stream")
    execution = s3.claim(put.task_id)
    worker = Thread(lambda: s3.run(execution))
    eventually(lambda: "part" in s3.event_types(put.task_id), 60)
    s3.remove(bucket, "large")
    execution.stop(ShuttingDown(""))
    worker.join_answer()
    assert s3.uploads_on_s3() == 1
    assert s3.state(put.task_id) == "cancelled"

    # The delete task of the blob that came to nothing knows the upload's id from the row.
    assert s3.work_all("delete") == ["completed"]
    assert s3.uploads_on_s3() == 0

    stray = s3.s3.get("live")
    stray.create_upload("acme/00/" + "0" * 32, deadline=Deadline(20))
    context = SweepContext(
        db=s3.db,
        catalogue=s3.catalogue,
        channels=s3.s3,
        staging=s3.staging,
        limits=SweepLimits(min_age_seconds=0.0),
    )
    sweeps = Sweeper(context, retry=lambda task_id: None)
    for _ in range(2):
        report = sweeps.run_once(deadline=Deadline(60), check=lambda: None)
    # The channel that nobody serves cannot be listed: nothing is aborted on the other one either.
    assert list(report.errors) == ["uploads"]
    assert s3.uploads_on_s3() == 1
