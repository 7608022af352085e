"""The kinds of staging, one line each: what stands in this folder runs on all of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.core.clock import Deadline
from shared.storage.file import FileChannel
from shared.storage.registry import Channels
from shared.storage.spec import ChannelSpec
from shared.storage.staging import Staging
from shared.storage.staging_objects import ObjectGround
from tests.servers.moto import S3Server

MIB = 1024 * 1024
#: What S3 takes as a part that is not the last one.
PART = 5 * MIB
#: Half of the memory is for parts that are being filled.
MEMORY, DISK = 4 * PART, 2 * PART
PARTS_HELD = (MEMORY // 2 + DISK) // PART
NODE = "api-1"


def file_staging(directory: Path) -> Staging:
    return Staging(FileChannel(directory / "staging", name="staging"))


def s3_staging(server: S3Server, **settings: object) -> Staging:
    spec = ChannelSpec(
        name="staging",
        kind="s3",
        settings={
            "endpoint": server.endpoint,
            "bucket": f"b{uuid.uuid4().hex[:20]}",
            "region": server.region,
            "page_names": 5,
            **settings,
        },
        secrets={"access_key": server.access_key, "secret_key": server.secret_key},
    )
    channel = Channels().open(spec).channel
    ground = ObjectGround(
        channel, node=lambda: NODE, part_bytes=PART, memory_bytes=MEMORY, disk_bytes=DISK
    )
    return Staging(channel, ground)


KINDS: dict[str, Callable[[pytest.FixtureRequest, Path], Staging]] = {
    "file": lambda request, path: file_staging(path),
    "s3-moto": lambda request, path: s3_staging(request.getfixturevalue("moto")),
    "s3-rgw": lambda request, path: s3_staging(
        request.getfixturevalue("rgw").server, prefix="staging/"
    ),
}


@pytest.fixture(
    params=[
        pytest.param(kind, marks=pytest.mark.needs_root if "rgw" in kind else ()) for kind in KINDS
    ]
)
def staging(request: pytest.FixtureRequest, tmp_path: Path) -> Staging:
    """An empty staging area of each kind."""
    made = KINDS[request.param](request, tmp_path)
    made.prepare(deadline=Deadline(30))
    return made


@pytest.fixture(
    params=[
        pytest.param(kind, marks=pytest.mark.needs_root if "rgw" in kind else ())
        for kind in KINDS
        if kind != "file"
    ]
)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Staging:
    """An empty staging area on an object store."""
    made = KINDS[request.param](request, tmp_path)
    made.prepare(deadline=Deadline(30))
    return made
