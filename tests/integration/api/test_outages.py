"""Servers behind the application that go away: clean refusals, nothing half stored, recovery."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

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
