"""One worker's stand per test, with a bucket's backups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.core.clock import Deadline
from shared.core.ids import new_id
from shared.storage.registry import prepare_channel
from shared.storage.spec import ChannelSpec
from tests.servers.rgw import CephRGW
from tests.support.backups import TARGET, BackupStand


@pytest.fixture
def stand(blox_url: str, tmp_path: Path) -> Iterator[BackupStand]:
    """A worker."""
    made = BackupStand(blox_url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def anywhere(
    request: pytest.FixtureRequest, blox_url: str, tmp_path: Path
) -> Iterator[BackupStand]:
    """A stand on directories, and one on a real S3."""
    specs = None
    if request.param == "rgw":
        specs = on_rgw(request.getfixturevalue("rgw"))
    made = BackupStand(blox_url, tmp_path, specs=specs)
    yield made
    made.close()


def on_rgw(rgw: CephRGW) -> dict[str, ChannelSpec]:
    """Make a bucket for each of the stand's channels."""
    server = rgw.server
    keys = {"access_key": server.access_key, "secret_key": server.secret_key}
    specs = {}
    for name in ("a", "b", "c"):
        bucket = f"blox-{name}-{new_id()[:12]}"
        # Under another name it is another server: what goes to the target goes through here.
        host = "localhost" if name == TARGET else "127.0.0.1"
        endpoint = server.endpoint.replace("127.0.0.1", host)
        settings = {"endpoint": endpoint, "bucket": bucket, "region": server.region}
        specs[name] = ChannelSpec(name, "s3", settings, keys)
        prepare_channel(specs[name], deadline=Deadline(30))
    return specs
