"""The kinds of channels, one line each: what stands in this folder runs on all of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.core.clock import Deadline
from shared.storage.breaker import Breaker
from shared.storage.channel import Channel
from shared.storage.faulty import FaultyChannel
from shared.storage.file import FileChannel
from shared.storage.guarded import GuardedChannel
from shared.storage.registry import open_channel
from shared.storage.spec import ChannelSpec
from tests.servers.moto import S3Server

MEBIBYTE = 1024 * 1024
#: What S3 takes as a part that is not the last one.
PART = 5 * MEBIBYTE


def s3_channel(server: S3Server, **settings: object) -> Channel:
    """A channel on a bucket of its own."""
    return open_channel(
        ChannelSpec(
            name="tested",
            kind="s3",
            settings={
                "endpoint": server.endpoint,
                "bucket": f"b{uuid.uuid4().hex[:20]}",
                "region": server.region,
                "copy_part_bytes": PART,
                "page_names": 5,
                **settings,
            },
            secrets={"access_key": server.access_key, "secret_key": server.secret_key},
        )
    )


def file_channel(directory: Path) -> Channel:
    return FileChannel(directory / "channel", name="tested")


KINDS: dict[str, Callable[[pytest.FixtureRequest, Path], Channel]] = {
    "file": lambda request, path: file_channel(path),
    "file-guarded": lambda request, path: GuardedChannel(file_channel(path), Breaker("tested")),
    "file-double": lambda request, path: FaultyChannel(file_channel(path)),
    "s3-moto": lambda request, path: s3_channel(request.getfixturevalue("moto")),
    "s3-moto-sha256": lambda request, path: s3_channel(
        request.getfixturevalue("moto"), checksum="sha256", prefix="below/"
    ),
    "s3-rgw": lambda request, path: s3_channel(request.getfixturevalue("rgw").server),
    "s3-rgw-prefix": lambda request, path: s3_channel(
        request.getfixturevalue("rgw").server, prefix="ab/c"
    ),
}


@pytest.fixture(
    params=[
        pytest.param(kind, marks=pytest.mark.needs_root if "rgw" in kind else ()) for kind in KINDS
    ]
)
def channel(request: pytest.FixtureRequest, tmp_path: Path) -> Channel:
    """An empty channel of each kind."""
    made = KINDS[request.param](request, tmp_path)
    made.prepare(deadline=Deadline(30))
    return made


@pytest.fixture
def deadline() -> Deadline:
    return Deadline(60)
