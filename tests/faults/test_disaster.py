"""A large object through upload, replica and backup; then its channels are emptied, and it is back.

On a real S3, MariaDB and Redis, in the processes of an ordinary stack, each within its memory.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.cli.supervisor import EmbeddedStack
from tests.acceptance.product import foreign_client, run_blox, s3_variables
from tests.faults.test_storm import settings
from tests.servers.redis import RedisServer
from tests.servers.rgw import CephRGW
from tests.support.eventually import eventually

MIB = 1024 * 1024
#: What every process of a service keeps below.
MOST_MEMORY = 300 * MIB
PATIENCE = 600.0
PATH = "/buckets/large/objects/one"


@dataclass(frozen=True)
class World:
    stack: EmbeddedStack
    s3: Any
    buckets: dict[str, str]
    http: httpx.Client

    def get(self, path: str) -> Any:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, **order: Any) -> Any:
        answer = self.http.post(path, json=order)
        assert answer.status_code == 202, answer.text
        return answer.json()

    def sizes(self, channel: str) -> list[int]:
        """Return the sizes of what the S3 server has."""
        found = self.s3.list_objects_v2(Bucket=self.buckets[channel])
        return [item["Size"] for item in found.get("Contents", ())]

    def empty(self, channel: str) -> None:
        """Remove everything from a channel, as an accident would."""
        for item in self.s3.list_objects_v2(Bucket=self.buckets[channel]).get("Contents", ()):
            self.s3.delete_object(Bucket=self.buckets[channel], Key=item["Key"])


@pytest.fixture
def world(
    database_url: str, redis_server: RedisServer, rgw: CephRGW, tmp_path: Path
) -> Iterator[World]:
    run = uuid.uuid4().hex[:12]
    buckets = {name: f"{name}-{run}" for name in ("main", "vault")}
    # Under another name it is another server: the bytes go through the worker.
    elsewhere = replace(rgw.server, endpoint=rgw.server.endpoint.replace("127.0.0.1", "localhost"))
    variables = {
        **settings(database_url, redis_server.url),
        "BLOX_NAMESPACE": f"t{run}",
        "BLOX_SCHEDULER__REPLICA_SECONDS": "1",
        "BLOX_REPLICAS__RETRY_SECONDS": "1",
        **s3_variables("main", rgw.server, buckets["main"], part_bytes=str(16 * MIB)),
        **s3_variables("vault", elsewhere, buckets["vault"], part_bytes=str(16 * MIB)),
        "BLOX_CHANNELS__MIRROR__KIND": "file",
        "BLOX_CHANNELS__MIRROR__ROOT": str(tmp_path / "mirror"),
    }
    with (
        EmbeddedStack(tmp_path / "stack", variables=variables) as stack,
        httpx.Client(
            base_url=f"{stack.api_url}/v1",
            headers={"authorization": f"Bearer {stack.admin_key}"},
            timeout=300,
        ) as http,
    ):
        yield World(stack, foreign_client(rgw.server), buckets, http)


def body(size: int) -> Iterator[bytes]:
    """Return bytes without repetition, the same each time."""
    source = random.Random(7)
    for _ in range(size // MIB):
        yield source.randbytes(MIB)


def peaks(stack: EmbeddedStack) -> dict[str, int]:
    """Return the most memory that each process has had."""
    found = {}
    for name, pid in stack.pids().items():
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                found[name] = int(line.split()[1]) * 1024
    return found


def read_back(world: World) -> tuple[int, str]:
    """Get the object; returns the status and the content's SHA-256."""
    digest = hashlib.sha256()
    with world.http.stream("GET", PATH) as answer:
        for chunk in answer.iter_bytes():
            digest.update(chunk)
    return answer.status_code, digest.hexdigest()


@pytest.mark.timeout(1200)
@pytest.mark.databases("mariadb")
@pytest.mark.parametrize("size", [48 * MIB, pytest.param(1024 * MIB, marks=pytest.mark.long)])
def test_emptied_channels_are_filled_again(world: World, tmp_path: Path, size: int) -> None:
    rule = {"target": "vault", "grace_seconds": 0}
    rules = {"channels": ["main"], "replica_channels": ["mirror"], "backup": rule}
    world.http.put("/buckets/large", json=rules).raise_for_status()
    wanted = hashlib.sha256()
    for chunk in body(size):
        wanted.update(chunk)
    put = world.http.put(PATH, content=body(size))
    assert put.status_code == 202, put.text
    head = lambda: world.http.head(PATH).headers["x-blox-state"]  # noqa: E731
    eventually(lambda: head() == "stored", PATIENCE, interval_seconds=0.2)
    mirror = tmp_path / "mirror" / "objects"

    def mirrored() -> list[int]:
        return [path.stat().st_size for path in mirror.rglob("*") if path.is_file()]

    eventually(lambda: mirrored() == [size], PATIENCE, interval_seconds=0.2)
    run = world.post("/buckets/large/backups")
    look = f"/buckets/large/backups/{run['id']}"
    eventually(lambda: world.get(look)["state"] == "complete", PATIENCE, interval_seconds=0.5)
    assert size in world.sizes("vault")

    world.empty("main")
    shutil.rmtree(mirror)
    mirror.mkdir()
    assert read_back(world)[0] == 503
    world.post("/buckets/large/restores", mode="content")

    def is_back() -> bool:
        return read_back(world) == (200, wanted.hexdigest())

    eventually(is_back, PATIENCE, interval_seconds=1.0)
    eventually(lambda: world.sizes("main") == [size], PATIENCE, interval_seconds=0.5)
    eventually(lambda: mirrored() == [size], PATIENCE, interval_seconds=0.5)
    exact = ("--late-seconds", "5", "--min-age-seconds", "30", "--deep", "-o", "json")
    checked = run_blox(world.stack.variables, "check", *exact)
    assert (checked.code, checked.out.strip()) == (0, "[]"), checked.out
    memory = {name: used for name, used in peaks(world.stack).items() if name != "redis"}
    assert memory
    assert {name: used // MIB for name, used in memory.items() if used > MOST_MEMORY} == {}
