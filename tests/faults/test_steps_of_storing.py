"""SIGKILL at every numbered step of upload, delete and review, on MariaDB, Redis and Ceph RGW."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.acceptance.product import Tenant, object_path, random_bytes
from tests.faults.ground import Ground, open_ground
from tests.faults.steps import STEPS
from tests.servers.mariadb import MariaDB
from tests.servers.redis import RedisServer
from tests.servers.rgw import CephRGW

pytestmark = pytest.mark.timeout(300)

SMALL = 70_000
LARGE = 11 * 1024 * 1024


@pytest.fixture(scope="module")
def ground(
    mariadb: MariaDB,
    redis_server: RedisServer,
    rgw: CephRGW,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Ground]:
    with open_ground(tmp_path_factory.mktemp("ground"), mariadb, redis_server, rgw) as made:
        made.need("api", "scheduler")
        yield made


@pytest.fixture
def tenant(ground: Ground) -> Iterator[Tenant]:
    made = Tenant(ground)
    with made.http:
        made.bucket("files")
        yield made


def test_upload(ground: Ground, tenant: Tenant) -> None:
    contents: dict[str, bytes] = {}

    def put(size: int) -> int:
        name = f"files/{len(contents)}"
        contents[name] = random_bytes(size)
        return int(tenant.put(name, contents[name])["task_id"])

    ground.kill_in_task("upload", STEPS["upload"].of("small"), lambda: put(SMALL))
    ground.kill_in_task("upload", STEPS["upload"].of("large"), lambda: put(LARGE))
    ground.clean()
    for name, content in contents.items():
        assert tenant.get(name).content == content
