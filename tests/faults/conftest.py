"""A stack whose processes die where a test says: one for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.product import Tenant
from tests.faults.files import Files
from tests.faults.ground import Ground, open_ground
from tests.servers.mariadb import MariaDB
from tests.servers.redis import RedisServer
from tests.servers.rgw import CephRGW


@pytest.fixture(scope="module")
def ground(
    mariadb: MariaDB,
    redis_server: RedisServer,
    rgw: CephRGW,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Ground]:
    """The servers and what forks processes; API and scheduler run."""
    with open_ground(tmp_path_factory.mktemp("ground"), mariadb, redis_server, rgw) as made:
        made.need("api", "scheduler")
        yield made


@pytest.fixture
def files(ground: Ground) -> Iterator[Files]:
    """A tenant of the test's own, with the bucket `files` on the channel `main`."""
    ground.need("api", "scheduler")
    tenant = Tenant(ground)  # type: ignore[arg-type]
    with tenant.http:
        tenant.bucket("files")
        yield Files(ground, tenant)
    ground.stop(*ground.workers)
