"""The product on MariaDB, Redis and Ceph RGW, started once; a tenant for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import sqlalchemy as sa

from services.cli.app import run
from services.cli.supervisor import EmbeddedStack
from shared.runtime.settings import own_variables
from tests.acceptance.product import Blox, Product, Ran, Tenant, foreign_client, s3_variables
from tests.servers.mariadb import MariaDB
from tests.servers.redis import RedisServer
from tests.servers.rgw import CephRGW

#: Bytes per second of the channel `slow`: a few MiB take seconds there.
SLOW = 1024 * 1024


@pytest.fixture(scope="session")
def product(
    mariadb: MariaDB,
    redis_server: RedisServer,
    rgw: CephRGW,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Product]:
    """The stack with the channels `main`, `spare` and `slow`; grace and sweeps are short."""
    run = uuid.uuid4().hex[:12]
    buckets = {name: f"{name}-{run}" for name in ("main", "spare", "slow")}
    database = mariadb.create_database()
    variables = {
        "BLOX_DATABASE_URL": mariadb.url(database),
        "BLOX_REDIS_URL": redis_server.url,
        "BLOX_NAMESPACE": f"t{run}",
        "BLOX_GRACE_SECONDS": "1",
        "BLOX_SCHEDULER__CLEANUP_SECONDS": "1",
        "BLOX_SWEEPS__MIN_AGE_SECONDS": "1",
        "BLOX_STAGING__MIN_FREE_BYTES": "0",
        # The tests' own servers, which reviewers and origins would be.
        "BLOX_FETCH__ALLOW": '["127.0.0.0/8:*"]',
        "BLOX_OUTBOX__SCAN_SECONDS": "0.5",
        **s3_variables("main", rgw.server, buckets["main"]),
        **s3_variables("spare", rgw.server, buckets["spare"]),
        **s3_variables("slow", rgw.server, buckets["slow"], bandwidth_bytes_per_second=str(SLOW)),
    }
    directory = Path(tmp_path_factory.mktemp("product"))
    stack = EmbeddedStack(
        directory,
        variables=variables,
        workers={"upload": 1, "review": 1, "delete": 1, "origin": 1, "replica": 1},
    )
    engine = sa.create_engine(variables["BLOX_DATABASE_URL"])
    try:
        stack.start(timeout_seconds=120.0)
        yield Product(stack, rgw.server, engine, buckets)
    finally:
        stack.stop()
        engine.dispose()
        _empty(rgw, buckets)
        mariadb.drop_database(database)


@pytest.fixture
def blox(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Blox:
    """Run `blox` in this process, with these settings and no others: quicker by a second."""

    def run_here(variables: Mapping[str, str], *arguments: str) -> Ran:
        for name in own_variables():
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        code = run(arguments)
        written = capsys.readouterr()
        return Ran(code, written.out, written.err)

    return run_here


@pytest.fixture
def tenant(product: Product) -> Iterator[Tenant]:
    """A tenant of the test's own, with an empty bucket `files` on the channel `main`."""
    made = Tenant(product.stack)
    with made.http:
        made.bucket("files")
        yield made


def _empty(rgw: CephRGW, buckets: dict[str, str]) -> None:
    """Give the memory back: the store keeps its objects in it."""
    client = foreign_client(rgw.server)
    for bucket in buckets.values():
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for item in page.get("Contents", ()):
                client.delete_object(Bucket=bucket, Key=item["Key"])
