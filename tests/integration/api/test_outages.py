"""Servers behind the application that go away: clean refusals, nothing half stored, recovery."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.api.storing import Order, store
from services.api.uploads import Declared
from shared.catalog.conditions import UNCONDITIONAL
from shared.catalog.puts import PutAnswer
from shared.core.errors import UnavailableError
from tests.integration.api.stack import BUCKET, Stack, running_stack
from tests.servers.mariadb import MariaDB
from tests.servers.redis import RedisServer
from tests.support.eventually import eventually
from tests.support.schema import create_all

PATH = f"/buckets/{BUCKET}/objects"


def test_without_the_database_a_put_is_refused_and_stores_nothing(
    private_mariadb: MariaDB, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    url = private_mariadb.url(private_mariadb.create_database())
    create_all(url)
    with running_stack(url, redis_url, namespace, tmp_path) as stack, stack.client() as client:
        assert client.put(f"{PATH}/a", content=b"a").status_code == 202
        before = stack.staged_files()
        private_mariadb.stop()
        for method, path in (
            ("PUT", f"{PATH}/b"),
            ("GET", f"{PATH}/a"),
            ("DELETE", f"{PATH}/a"),
            ("GET", "/tasks"),
            ("POST", "/tasks/1:cancel"),
        ):
            answer = client.request(method, path, content=b"b" if method == "PUT" else None)
            assert answer.status_code == 503, (method, answer.text)
            assert answer.headers["content-type"] == "application/problem+json"
            assert int(answer.headers["retry-after"]) >= 1
            assert "pymysql" not in answer.text.lower()
            assert "127.0.0.1" not in answer.text
        assert stack.staged_files() == before
        private_mariadb.start()
        eventually(lambda: client.put(f"{PATH}/b", content=b"b").status_code == 202, 30)
        assert client.get(f"{PATH}/a").content == b"a"
        assert client.get(f"{PATH}/b").content == b"b"


def test_database_that_goes_away_while_the_body_comes_stores_nothing(
    private_mariadb: MariaDB, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    url = private_mariadb.url(private_mariadb.create_database())
    create_all(url)
    with running_stack(url, redis_url, namespace, tmp_path) as stack, stack.client() as client:

        def body() -> object:
            yield b"first half"
            eventually(stack.staged_files)
            private_mariadb.stop()
            yield b"second half"

        answer = client.put(f"{PATH}/a", content=body())  # type: ignore[arg-type]
        assert answer.status_code == 503
        assert stack.staged_files() == []
        private_mariadb.start()
        eventually(lambda: client.get(f"{PATH}/a").status_code == 404, 30)
        assert stack.is_untouched()


def test_without_redis_a_put_is_acknowledged(
    blox_url: str, private_redis: RedisServer, namespace: str, tmp_path: Path
) -> None:
    with (
        running_stack(blox_url, private_redis.url, namespace, tmp_path) as stack,
        stack.client() as client,
    ):
        private_redis.stop()
        answer = client.put(f"{PATH}/a", content=b"a")
        assert answer.status_code == 202, answer.text
        assert client.get(f"{PATH}/a").content == b"a"
        task = client.get(f"/tasks/{answer.json()['task_id']}").json()
        assert task["state"] in {"pending", "dispatching", "scheduled"}
        cancelled = client.post(f"/tasks/{task['id']}:cancel")
        assert cancelled.json()["state"] == "cancelled"


@pytest.mark.databases("sqlite")
def test_staging_that_cannot_be_written_is_said(stack: Stack) -> None:
    stack.staging_root.rename(stack.staging_root.with_name("moved"))
    with stack.client() as client:
        answer = client.put(f"{PATH}/a", content=b"a")
        assert answer.status_code == 503, answer.text
        assert str(stack.staging_root) not in answer.text
        assert stack.count("versions") == 0
        stack.staging_root.with_name("moved").rename(stack.staging_root)
        assert client.put(f"{PATH}/a", content=b"a").status_code == 202


def test_bytes_that_are_gone_from_staging_are_said(stack: Stack) -> None:
    with stack.client() as client:
        client.put(f"{PATH}/a", content=b"a")
        for path in stack.staged_files():
            path.unlink()
        answer: httpx.Response = client.get(f"{PATH}/a")
        assert (answer.status_code, answer.json()["code"]) == (503, "content_unavailable")
        assert client.head(f"{PATH}/a").status_code == 200


@contextlib.contextmanager
def losing_commit(
    stack: Stack, *, carried_out: bool, code: int = 2013, message: str = "Lost connection to server"
) -> Iterator[None]:
    """Let this thread's next COMMIT fail, after it was carried out or before."""
    dialect = stack.engine.dialect
    commit, owner, armed = dialect.do_commit, threading.get_ident(), [True]

    def lose(connection: Any) -> None:
        if threading.get_ident() != owner or not armed:
            commit(connection)
            return
        armed.clear()
        (commit if carried_out else dialect.do_rollback)(connection)
        raise dialect.loaded_dbapi.OperationalError(code, message)

    dialect.do_commit = lose  # type: ignore[method-assign]
    try:
        yield
    finally:
        dialect.do_commit = commit  # type: ignore[method-assign]
    assert not armed


def put_directly(stack: Stack) -> PutAnswer:
    deps = stack.deps
    writer = deps.staging.writer(declared_size=5)
    writer.write(b"hello")
    order = Order(bucket_id=1, key="k", declared=Declared(), conditions=UNCONDITIONAL)
    return store(deps.database, deps.catalogue, deps.staging, writer.finish(), order)


def test_commit_whose_answer_was_lost_is_looked_up(stack: Stack) -> None:
    with losing_commit(stack, carried_out=True):
        answer = put_directly(stack)
    assert answer.state == "pending"
    with stack.client() as client:
        assert client.get(f"{PATH}/k").content == b"hello"


def test_commit_that_failed_in_no_known_way_takes_no_bytes_along(stack: Stack) -> None:
    """The row may be there, and with it the end of the version before it."""
    with losing_commit(stack, carried_out=True, code=1180, message="Got error 5 during COMMIT"):
        put_directly(stack)
    with stack.client() as client:
        assert client.get(f"{PATH}/k").content == b"hello"


def test_commit_that_may_be_lost_is_refused_and_its_bytes_are_left_to_the_cleanup(
    stack: Stack,
) -> None:
    with losing_commit(stack, carried_out=False), pytest.raises(UnavailableError):
        put_directly(stack)
    assert stack.count("versions") == 0
    assert len(stack.staged_files()) == 1
