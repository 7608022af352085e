"""SIGKILL of an API process around the commit of a deletion, a copy and a move; another goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shared.catalog.invariants.rows import row_breaches
from shared.core.clock import utc_now
from tests.integration.api.stack import BUCKET, Stack
from tests.integration.api.test_upload_crashes import dies, doomed
from tests.integration.api.working import uploading_worker
from tests.support.eventually import eventually

pytestmark = pytest.mark.databases("mariadb")

OBJECTS = f"/buckets/{BUCKET}/objects"


def check_rows(stack: Stack) -> None:
    """Every invariant of the rows holds; the content that went has just been condemned."""
    breaches = stack.deps.database.run_session(
        lambda session: list(
            row_breaches(session, now=utc_now(), late_seconds=60, sweep_seconds=60)
        ),
        read_only=True,
    )
    assert breaches == []


@pytest.fixture
def arguments(blox_url: str, redis_url: str, namespace: str, tmp_path: Path) -> list[str]:
    return [blox_url, redis_url, namespace, str(tmp_path)]


@pytest.fixture
def client(stack: Stack, redis_url: str, namespace: str) -> Iterator[httpx.Client]:
    """A client that finds `k` stored."""
    with uploading_worker(stack, redis_url, namespace), stack.client() as client:
        client.put(f"{OBJECTS}/k", content=b"hello")
        eventually(lambda: client.head(f"{OBJECTS}/k").headers["x-blox-state"] == "stored")
        yield client


@pytest.mark.parametrize(("step", "status"), [("written", 200), ("committed", 404)])
def test_deletion_is_whole_or_not_there(
    stack: Stack, client: httpx.Client, arguments: list[str], step: str, status: int
) -> None:
    with doomed(arguments, f"api.delete.{step}") as dying:
        dies(lambda: dying.delete(f"{OBJECTS}/k"))
    # Whoever lost the row locks is noticed by the database at once.
    assert client.get(f"{OBJECTS}/k").status_code == status
    assert client.delete(f"{OBJECTS}/k").status_code == 204
    assert client.get(f"{OBJECTS}/k").status_code == 404
    waiting = client.get("/tasks", params={"queue": "delete"}).json()["items"]
    assert [task["kind"] for task in waiting] == ["delete.blob"]
    check_rows(stack)


@pytest.mark.parametrize("action", ["copy", "move"])
@pytest.mark.parametrize("step", ["written", "committed"])
def test_copy_is_whole_or_not_there(
    stack: Stack, client: httpx.Client, arguments: list[str], action: str, step: str
) -> None:
    order, headers = {"key": "there"}, {"idempotency-key": "one"}
    address = f"{OBJECTS}/k:{action}"
    with doomed(arguments, f"api.copy.{step}") as dying:
        dies(lambda: dying.post(address, json=order, headers=headers))
    is_done = step == "committed"
    assert client.get(f"{OBJECTS}/there").status_code == (200 if is_done else 404)
    is_moved = is_done and action == "move"
    assert client.get(f"{OBJECTS}/k").status_code == (404 if is_moved else 200)
    # The same request again is carried out once.
    answer = client.post(address, json=order, headers=headers)
    assert (answer.status_code, answer.json()["generation"]) == (201, 1)
    assert client.get(f"{OBJECTS}/there").content == b"hello"
    assert stack.count("blob_refs") == (1 if action == "move" else 2)
    check_rows(stack)
