"""A worker whose channels are buckets of one S3, `one` and `two`; and such a process that dies."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from functools import partial
from pathlib import Path

from sqlalchemy.orm import Session

from shared.catalog.accounts import ensure_tenant
from shared.catalog.buckets import BucketSpec, put_bucket
from shared.catalog.channel_catalogue import ChannelCatalogue
from shared.catalog.channels import ChannelInput, load_channels, put_channel
from shared.catalog.invariants.bytes import Stores, byte_breaches
from shared.catalog.invariants.leftovers import Ages
from shared.catalog.invariants.rows import row_breaches
from shared.catalog.sweeps.context import SweepContext, SweepLimits
from shared.catalog.sweeps.sweeper import Sweeper
from shared.core.clock import Deadline, utc_now
from shared.core.failpoints import arm
from shared.core.ids import new_id
from shared.storage.registry import prepare_channel
from tests.servers.rgw import CephRGW
from tests.support.handlers import MIB, TENANT, Stand

#: What S3 takes as a part that is not the last one.
PART = 5 * MIB


class S3Replicas(Stand):
    """A worker that finds its channels in the catalogue's own table."""

    def connect(self) -> None:
        """Use the table's channels."""
        self.s3 = ChannelCatalogue(self.db.engine, self.secrets)
        self.upload = dataclasses.replace(self.upload, channels=self.s3)
        self.replica = dataclasses.replace(self.replica, channels=self.s3)
        self.delete = dataclasses.replace(self.delete, channels=self.s3)

    def use(self, rgw: CephRGW, *, copy_part_bytes: int = PART) -> None:
        """Put two buckets of a server into the table."""
        server = rgw.server
        for name in ("one", "two"):
            settings = {
                "endpoint": server.endpoint,
                "bucket": f"blox-{new_id()[:12]}",
                "region": server.region,
                "part_bytes": PART,
                "copy_part_bytes": copy_part_bytes,
            }
            credentials = {"access_key": server.access_key, "secret_key": server.secret_key}
            channel = ChannelInput(name=name, kind="s3", settings=settings, credentials=credentials)
            self.db.run_session(partial(put_channel, channel=channel, secrets=self.secrets))
        for stored in self.look(lambda session: load_channels(session, self.secrets)).values():
            prepare_channel(stored.spec, deadline=Deadline(20))
        self.connect()

    def replicated(self) -> int:
        """Make a bucket whose contents are on both."""

        def write(session: Session) -> int:
            ensure_tenant(session, TENANT)
            spec = BucketSpec(channels=["one"], replica_channels=["two"])
            return put_bucket(session, TENANT, "photos", spec).bucket.id

        return self.db.run_session(write)

    def bucket_on(self, name: str, channel: str) -> int:
        """Make a bucket whose contents are on one of them."""

        def write(session: Session) -> int:
            ensure_tenant(session, TENANT)
            return put_bucket(session, TENANT, name, BucketSpec(channels=[channel])).bucket.id

        return self.db.run_session(write)

    def content(self, blob_id: int, channel: str) -> bytes:
        """Return the bytes of a blob's stored copy on a channel."""
        (found,) = [
            one
            for one in self.locations(blob_id)
            if one.channel == channel and one.state == "stored"
        ]
        with self.s3.get(channel).get(found.key, deadline=Deadline(60)) as chunks:
            return b"".join(chunks)

    def sweep(self, passes: int) -> None:
        """Make passes of the sweeps, without ages."""
        limits = SweepLimits(
            min_age_seconds=0.0,
            staging_age_seconds=0.0,
            trash_seconds=0.0,
            tombstone_seconds=0.0,
        )
        context = SweepContext(
            db=self.db,
            catalogue=self.catalogue,
            channels=self.s3,
            staging=self.staging,
            limits=limits,
        )
        sweeps = Sweeper(context, retry=lambda task_id: None)
        for _ in range(passes):
            assert sweeps.run_once(deadline=Deadline(60), check=lambda: None).errors == {}

    def breaches(self) -> list[str]:
        """Return what `blox check --deep` would list."""
        stores = Stores(
            channels=self.s3,
            staging=self.staging,
            ages=Ages(key=0.0, upload=0.0, tombstone=0.0, staging=0.0),
            is_deep=True,
        )

        with Session(self.db.engine) as session:
            now = utc_now()
            found = list(row_breaches(session, now=now, late_seconds=0.0, sweep_seconds=0.0))
            session.rollback()
            found += byte_breaches(session, stores)
        return [str(one) for one in found]


def crash_on_s3(stand: Stand, root: Path, task_id: int, failpoint: str) -> int | None:
    """Let another process die in a task; returns its exit code, -9 when it died at the point.

    Forked: to start an interpreter at each of many points would take minutes.
    """
    url = stand.db.engine.url.render_as_string(hide_password=False)
    process = multiprocessing.get_context("fork").Process(
        target=_die, args=(url, root, task_id, failpoint)
    )
    process.start()
    process.join(90)
    assert not process.is_alive(), "the process neither died nor ended"
    return process.exitcode


def _die(url: str, root: Path, task_id: int, failpoint: str) -> None:
    """Run one task, with connections of its own, and end without letting go of the parent's."""
    stand = S3Replicas(url, root, node="doomed")
    stand.connect()
    execution = stand.claim(task_id)
    arm(f"{failpoint}=kill")
    stand.run(execution)
    os._exit(0)
