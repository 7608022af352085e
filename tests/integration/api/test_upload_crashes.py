"""SIGKILL of an API process at each step of an upload in parts; the client goes on at another."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.catalog.invariants.rows import row_breaches
from shared.catalog.sweeps.context import SweepContext, SweepLimits
from shared.catalog.sweeps.sweeper import Sweeper
from shared.core.clock import Deadline, utc_now
from tests.integration.api.stack import BUCKET, Stack
from tests.integration.api.working import uploading_worker
from tests.support.eventually import eventually

pytestmark = pytest.mark.databases("mariadb")

PARTS = [random.Random(5).randbytes(70_000), random.Random(6).randbytes(80_000)]
ORDER = {"operation_id": "op-1", "bucket": BUCKET, "key": "film"}


@contextlib.contextmanager
def doomed(arguments: list[str], step: str) -> Iterator[httpx.Client]:
    """Another API process on the same database and staging, that dies at the step."""
    command = [sys.executable, "-m", "tests.integration.api.standalone", *arguments]
    with subprocess.Popen(
        [*command, f"{step}=kill"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        where = json.loads(process.stdout.readline())
        with httpx.Client(
            base_url=where["url"],
            headers={"authorization": f"Bearer {where['secret']}"},
            timeout=30,
        ) as client:
            yield client
        assert process.wait(30) == -signal.SIGKILL


def begin(client: httpx.Client) -> str:
    answer = client.post("/uploads", json=ORDER)
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["id"])


def put(client: httpx.Client, upload: str, number: int) -> int:
    path = f"/uploads/{upload}/parts/{number}"
    return client.put(path, content=PARTS[number - 1]).status_code


def dies(request: Callable[[], Any]) -> None:
    with pytest.raises(httpx.TransportError):
        request()


def sweep(stack: Stack) -> None:
    """Make three passes without ages."""
    limits = SweepLimits(
        min_age_seconds=0.0, staging_age_seconds=0.0, trash_seconds=0.0, tombstone_seconds=0.0
    )
    context = SweepContext(
        db=stack.deps.database,
        catalogue=stack.deps.catalogue,
        channels=stack.deps.channels,
        staging=stack.deps.staging,
        limits=limits,
    )
    sweeps = Sweeper(context, retry=lambda task_id: stack.deps.outbox.retry(task_id, by="sweep"))
    for _ in range(3):
        assert sweeps.run_once(deadline=Deadline(60), check=lambda: None).errors == {}


def check_rows(stack: Stack) -> None:
    breaches = stack.deps.database.run_session(
        lambda session: list(row_breaches(session, now=utc_now(), late_seconds=0, sweep_seconds=0)),
        read_only=True,
    )
    assert breaches == []


@pytest.fixture
def arguments(blox_url: str, redis_url: str, namespace: str, tmp_path: Path) -> list[str]:
    return [blox_url, redis_url, namespace, str(tmp_path)]


@pytest.mark.parametrize(
    ("step", "counts"),
    [("storage.staging", 0), ("uploads.part_staged", 0), ("uploads.part_committed", 1)],
)
def test_part_of_a_process_that_died_counts_or_leaves_nothing(
    stack: Stack,
    arguments: list[str],
    redis_url: str,
    namespace: str,
    step: str,
    counts: int,
) -> None:
    with doomed(arguments, step) as client:
        upload = begin(client)
        dies(lambda: put(client, upload, 1))
    sweep(stack)
    with uploading_worker(stack, redis_url, namespace), stack.client() as client:
        assert begin(client) == upload
        there = client.get(f"/uploads/{upload}").json()["parts"]
        assert [part["number"] for part in there] == [1][:counts]
        assert len(stack.staged_files()) == counts
        for number in range(1 + counts, 3):
            assert put(client, upload, number) == 200
        finish(stack, client, upload)


def test_completion_that_was_not_answered_is_answered_by_another(
    stack: Stack, arguments: list[str], redis_url: str, namespace: str
) -> None:
    with doomed(arguments, "uploads.frozen") as client:
        upload = begin(client)
        assert put(client, upload, 1) == put(client, upload, 2) == 200
        dies(lambda: client.post(f"/uploads/{upload}:complete"))
    sweep(stack)
    assert len(stack.staged_files()) == 2
    with uploading_worker(stack, redis_url, namespace), stack.client() as client:
        finish(stack, client, upload)


@pytest.mark.parametrize("step", ["uploads.aborted", "uploads.abort_released"])
def test_giving_up_that_was_cut_short_is_carried_through(
    stack: Stack, arguments: list[str], step: str
) -> None:
    with doomed(arguments, step) as client:
        upload = begin(client)
        assert put(client, upload, 1) == 200
        dies(lambda: client.delete(f"/uploads/{upload}"))
    with stack.client() as client:
        refused = client.put(f"/uploads/{upload}/parts/2", content=PARTS[1])
        assert (refused.status_code, refused.json()["code"]) == (409, "upload_aborted")
        sweep(stack)
        assert client.get(f"/uploads/{upload}").status_code == 404
    assert (stack.count("upload_sessions"), stack.count("upload_parts")) == (0, 0)
    assert not stack.staged_files()
    check_rows(stack)


def finish(stack: Stack, client: httpx.Client, upload: str) -> None:
    """Complete, wait for the version on its channel, and find nothing left."""

    def result() -> Any:
        answer = client.post(f"/uploads/{upload}:complete")
        assert answer.status_code in (200, 202), answer.text
        return answer.json()["result"]

    version = eventually(result, 20)["version_id"]
    path = f"/buckets/{BUCKET}/objects/film"
    eventually(lambda: client.head(path).headers["x-blox-state"] == "stored", 20)
    got = client.get(path)
    assert got.content == b"".join(PARTS)
    assert got.headers["x-blox-version"] == str(version)
    assert result()["version_id"] == version
    eventually(lambda: not stack.staged_files(), 20)
    assert (stack.count("versions"), stack.count("upload_parts")) == (1, 0)
    check_rows(stack)
