"""Other people's S3 clients list and read what a transfer has written: byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.storage import Channels, ChannelSource, ChannelSpec, fresh_key, transfer
from shared.storage.file import FileChannel
from tests.servers.moto import S3Server
from tests.servers.process import need_program
from tests.servers.rgw import CephRGW
from tests.support.content import put, sha256, soon

pytestmark = pytest.mark.needs_root

MIB = 1024 * 1024
PART = 5 * MIB
#: One object is empty, one a single put, one has three parts.
CONTENTS = (b"", os.urandom(100_000), os.urandom(2 * PART + 17))


@dataclass
class Written:
    """What lies in the bucket, by key, and a folder for what comes back."""

    server: S3Server
    bucket: str
    contents: Mapping[str, bytes]
    folder: Path

    def run(self, program: str, *arguments: str, **variables: str) -> str:
        """Run a client that sees none of this machine's own settings."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), **variables}
        done = subprocess.run(
            [program, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def came_back(self, root: Path) -> dict[str, bytes]:
        found = (path for path in root.rglob("*") if path.is_file())
        return {str(path.relative_to(root)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def written(rgw: CephRGW, tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("foreign")
    server, bucket = rgw.server, f"b{uuid.uuid4().hex[:20]}"
    spec = ChannelSpec(
        "written",
        "s3",
        {"endpoint": server.endpoint, "bucket": bucket, "part_bytes": PART},
        {"access_key": server.access_key, "secret_key": server.secret_key},
    )
    source, opened = FileChannel(folder / "source", name="source"), Channels().open(spec)
    for channel in (source, opened.channel):
        channel.prepare(deadline=soon())
    contents = {}
    for content in CONTENTS:
        key = fresh_key("acme")
        put(source, key, content)
        transfer(
            ChannelSource(source, key),
            opened,
            key,
            size=len(content),
            sha256=sha256(content),
            deadline=soon(),
        )
        contents[key] = content
    return Written(server, bucket, contents, folder)


def client(name: str) -> str:
    """Return a client that came with the development requirements."""
    return str(Path(sys.executable).parent / name)


def test_aws(written: Written) -> None:
    server, back = written.server, written.folder / "aws"
    keys = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
    settings = {**keys, "AWS_DEFAULT_REGION": server.region, "AWS_EC2_METADATA_DISABLED": "true"}
    endpoint = ("--endpoint-url", server.endpoint)
    listing = written.run(
        client("aws"), *endpoint, "s3", "ls", "--recursive", f"s3://{written.bucket}", **settings
    )
    sizes = {line.split()[3]: int(line.split()[2]) for line in listing.splitlines()}
    assert sizes == {key: len(content) for key, content in written.contents.items()}
    written.run(
        client("aws"), *endpoint, "s3", "sync", f"s3://{written.bucket}", str(back), **settings
    )
    assert written.came_back(back) == written.contents


def test_rclone(written: Written) -> None:
    server, back = written.server, written.folder / "rclone"
    settings = {
        "RCLONE_CONFIG_R_TYPE": "s3",
        "RCLONE_CONFIG_R_PROVIDER": "Ceph",
        "RCLONE_CONFIG_R_ENDPOINT": server.endpoint,
        "RCLONE_CONFIG_R_ACCESS_KEY_ID": server.access_key,
        "RCLONE_CONFIG_R_SECRET_ACCESS_KEY": server.secret_key,
    }
    program, bucket = need_program("rclone"), f"r:{written.bucket}"
    listing = written.run(
        program, "lsf", "-R", "--files-only", "--format", "sp", bucket, **settings
    )
    sizes = {line.split(";")[1]: int(line.split(";")[0]) for line in listing.splitlines()}
    assert sizes == {key: len(content) for key, content in written.contents.items()}
    written.run(program, "copy", bucket, str(back), **settings)
    assert written.came_back(back) == written.contents
    # Its own comparison, by what the provider tells of each object and by the bytes.
    for more in ((), ("--download",)):
        written.run(program, "check", *more, str(back), bucket, **settings)


def test_s3cmd(written: Written) -> None:
    server, back = written.server, written.folder / "s3cmd"
    host = server.endpoint.partition("://")[2]
    options = (
        "--config=/dev/null",
        f"--host={host}",
        f"--host-bucket={host}",
        "--no-ssl",
        f"--access_key={server.access_key}",
        f"--secret_key={server.secret_key}",
    )
    program, bucket = client("s3cmd"), f"s3://{written.bucket}/"
    listing = written.run(program, *options, "ls", "--recursive", bucket)
    sizes = {
        line.split()[3].removeprefix(bucket): int(line.split()[2]) for line in listing.splitlines()
    }
    assert sizes == {key: len(content) for key, content in written.contents.items()}
    back.mkdir()
    written.run(program, *options, "sync", bucket, f"{back}/")
    assert written.came_back(back) == written.contents
