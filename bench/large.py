"""A file of 1 GiB through a stack on RGW whose staging is a bucket; its uploader killed half-way.

Shows what each process holds in memory at its most, and that the next uploader sends only the
parts that are missing. `python -m bench large`; BYTES may be less for a look.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import psutil

from bench.stage import Line, at_least, at_most, wait_until
from services.cli.supervisor import EmbeddedStack
from tests.servers.mariadb import running_mariadb
from tests.servers.rgw import CephRGW, running_rgw

MIB = 1024 * 1024
BYTES = 1024 * MIB
PART_BYTES = 8 * MIB
WORKER_MIB = 300
_PATIENCE_SECONDS = 600.0
_ENDED = frozenset({"completed", "failed", "cancelled"})


class Memory:
    """The most that each process of a stack holds, looked at all the time."""

    def __init__(self, stack: EmbeddedStack) -> None:
        self._stack = stack
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.most: dict[str, float] = {}

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            for name, pid in self._stack.pids().items():
                with contextlib.suppress(psutil.Error):
                    held = psutil.Process(pid).memory_info().rss / MIB
                    self.most[name] = max(self.most.get(name, 0.0), held)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def pieces() -> Iterator[bytes]:
    """Yield the file: no two pieces are the same."""
    block = bytearray(os.urandom(MIB))
    for number in range(BYTES // MIB):
        block[:8] = number.to_bytes(8, "big")
        yield bytes(block)


def variables(rgw: CephRGW, database_url: str) -> dict[str, str]:
    """Return the settings of the stack."""
    server = rgw.server
    bucket = {
        "KIND": "s3",
        "ENDPOINT": server.endpoint,
        "ACCESS_KEY": server.access_key,
        "SECRET_KEY": server.secret_key,
        "PART_BYTES": str(PART_BYTES),
    }
    return {
        "BLOX_DATABASE_URL": database_url,
        "BLOX_OUTBOX__LEASE_SECONDS": "4",
        "BLOX_OUTBOX__RENEW_SECONDS": "1",
        "BLOX_STAGING__BUCKET": "staging",
        "BLOX_CHANNELS__MAIN__BUCKET": "main",
        **{f"BLOX_STAGING__{name}": value for name, value in bucket.items()},
        **{f"BLOX_CHANNELS__MAIN__{name}": value for name, value in bucket.items()},
    }


def half_sent(client: httpx.Client, task_id: int) -> int | None:
    """Return the number of the uploader's process once it has sent half of the parts."""
    task = client.get(f"/tasks/{task_id}").raise_for_status().json()
    parts = [event["data"] for event in task["events"] if event["type"] == "part"]
    if not parts or parts[-1]["bytes_done"] < BYTES // 2 or task["state"] != "running":
        return None
    return int(str(task["owner"]).rpartition(":")[0].split("-")[-2])


def store_and_kill(stack: EmbeddedStack, client: httpx.Client) -> tuple[dict[str, Any], str, str]:
    """Put the file, kill its uploader half-way; returns the ended task and the two SHA-256."""
    client.put("/buckets/bench", json={"channels": ["main"]}).raise_for_status()
    sent, got = hashlib.sha256(), hashlib.sha256()

    def body() -> Iterator[bytes]:
        for piece in pieces():
            sent.update(piece)
            yield piece

    path = "/buckets/bench/objects/large"
    headers = {"content-length": str(BYTES)}
    task_id = client.put(path, content=body(), headers=headers).raise_for_status().json()["task_id"]
    names = {pid: name for name, pid in stack.pids().items()}
    found: list[int] = []

    def is_half_sent() -> bool:
        found.extend(filter(None, [half_sent(client, task_id)]))
        return bool(found)

    wait_until(is_half_sent, _PATIENCE_SECONDS)
    stack.kill(names[found[0]])
    task: dict[str, Any] = {}

    def has_ended() -> bool:
        task.update(client.get(f"/tasks/{task_id}").raise_for_status().json())
        return task["state"] in _ENDED

    wait_until(has_ended, _PATIENCE_SECONDS, 0.2)
    with client.stream("GET", path) as answer:
        for chunk in answer.iter_bytes():
            got.update(chunk)
    return task, sent.hexdigest(), got.hexdigest()


def run() -> Iterable[Line]:
    """Do it and tell."""
    folder = Path(tempfile.mkdtemp(prefix="blox-large-"))
    try:
        with running_mariadb() as mariadb, running_rgw() as rgw:
            url = mariadb.url(mariadb.create_database("large"))
            workers = {"upload": 2, "delete": 1}
            with (
                EmbeddedStack(folder, variables=variables(rgw, url), workers=workers) as stack,
                Memory(stack) as memory,
                httpx.Client(base_url=f"{stack.api_url}/v1", timeout=_PATIENCE_SECONDS) as client,
            ):
                client.headers["authorization"] = f"Bearer {stack.admin_key}"
                start = time.perf_counter()
                task, sent, got = store_and_kill(stack, client)
                seconds = time.perf_counter() - start
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = task.get("result") or {}
    kept, more = int(result.get("parts_kept", 0)), int(result.get("parts_sent", 0))
    detail = f"{kept} kept, {more} sent, {seconds:.0f} s in all"
    yield at_least(
        "parts that a killed upload need not send again", kept / (kept + more), 0.3, detail
    )
    is_same = task["state"] == "completed" and sent == got
    yield Line("bytes that come back", "equal" if is_same else "other", "equal", is_same)
    for name, most in sorted(memory.most.items()):
        if name == "api" or name.startswith(("upload", "delete", "scheduler")):
            yield at_most(f"memory of {name}", most, WORKER_MIB, "MiB")
