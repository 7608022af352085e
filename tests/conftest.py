"""Servers, once per session and only when asked for; a database and a namespace per test."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.mariadb import MariaDB, running_mariadb
from tests.servers.moto import S3Server, running_moto
from tests.servers.redis import RedisServer, running_redis
from tests.servers.rgw import CephRGW, running_rgw
from tests.support.databases import DatabaseKind, fresh_database
from tests.support.logs import plain_logs
from tests.support.selection import database_kinds, mark_and_select


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-root",
        action="store_true",
        help="leave out what needs servers from apt; Redis comes from a wheel",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Ended from outside, as by a time limit around it, the run still stops the servers it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    plain_logs()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_url" in metafunc.fixturenames:
        metafunc.parametrize("database_url", database_kinds(metafunc), indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_and_select(config, items)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """The session's MariaDB. A test that stops it asks for `private_mariadb` instead."""
    with running_mariadb(in_memory=True) as server:
        yield server


@pytest.fixture
def private_mariadb() -> Iterator[MariaDB]:
    """A MariaDB of the test's own, to stop, kill and restart."""
    with running_mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(pytestconfig: pytest.Config) -> Iterator[RedisServer]:
    """The session's Redis. A test that stops or flushes it asks for `private_redis` instead."""
    with running_redis(variant="wheel" if pytestconfig.getoption("no_root") else "any") as server:
        yield server


@pytest.fixture
def private_redis(pytestconfig: pytest.Config) -> Iterator[RedisServer]:
    """A Redis of the test's own, to stop, flush and restart."""
    with running_redis(variant="wheel" if pytestconfig.getoption("no_root") else "any") as server:
        yield server


@pytest.fixture(scope="session")
def rgw() -> Iterator[CephRGW]:
    """The session's Ceph RGW; `rgw.server` has endpoint and keys. Make a bucket per test."""
    with running_rgw() as gateway:
        yield gateway


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    """An S3 look-alike without root. Make a bucket per test."""
    with running_moto() as server:
        yield server


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty database, per test, on SQLite and on MariaDB.

    `@pytest.mark.databases("mariadb")` or `("sqlite")` narrows it; in tests/unit it is SQLite.
    """
    kind: DatabaseKind = request.param

    def server() -> MariaDB:
        started: MariaDB = request.getfixturevalue("mariadb")
        return started

    with fresh_database(kind, directory=tmp_path, server=server) as url:
        yield url


@pytest.fixture
def outbox_url(database_url: str) -> str:
    """The address of a database that holds the outbox's tables, empty."""
    from tests.support.schema import create_outbox

    create_outbox(database_url)
    return database_url


@pytest.fixture
def blox_url(database_url: str) -> str:
    """The address of a database that holds the outbox's and the catalogue's tables, empty."""
    from tests.support.schema import create_all

    create_all(database_url)
    return database_url


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The address of the session's Redis; keys are kept apart by `namespace`."""
    return redis_server.url


@pytest.fixture
def namespace() -> str:
    """A key prefix that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"
