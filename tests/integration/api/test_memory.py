"""Large bodies pass through in constant memory, in both directions."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.integration.api.stack import BUCKET

#: What one body has, and how many come at once.
SIZE, CLIENTS = 64 * 1024 * 1024, 4
BLOCK = os.urandom(1024 * 1024)
#: Far below one body, far above what buffers and threads take.
ALLOWED_GROWTH = 32 * 1024 * 1024


@pytest.fixture
def server(
    blox_url: str, redis_url: str, namespace: str, tmp_path: Path
) -> Iterator[dict[str, str]]:
    """The application in a process of its own, so that its memory is only its own."""
    command = [sys.executable, "-m", "tests.integration.api.standalone"]
    arguments = [blox_url, redis_url, namespace, str(tmp_path)]
    with subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the server did not start"
        yield {**json.loads(line), "pid": str(process.pid)}
        process.communicate(input="", timeout=30)


@pytest.mark.databases("sqlite")
def test_large_bodies_pass_in_constant_memory(server: dict[str, str]) -> None:
    process = psutil.Process(int(server["pid"]))
    expected = hashlib.sha256(BLOCK * (SIZE // len(BLOCK))).hexdigest()
    path = f"/buckets/{BUCKET}/objects"
    with httpx.Client(
        base_url=server["url"], headers={"authorization": f"Bearer {server['secret']}"}, timeout=60
    ) as client:
        client.put(f"{path}/warm", content=BLOCK)
        client.get(f"{path}/warm")
        before = process.memory_info().rss
        peak = _Peak(process)

        def put_and_get(number: int) -> None:
            body = (BLOCK for _ in range(SIZE // len(BLOCK)))
            headers = {"content-length": str(SIZE)}
            answer = client.put(f"{path}/{number}", content=body, headers=headers)
            assert answer.status_code == 202, answer.text
            digest = hashlib.sha256()
            with client.stream("GET", f"{path}/{number}") as got:
                for chunk in got.iter_bytes():
                    digest.update(chunk)
            assert digest.hexdigest() == expected
            done.append(number)

        def put_part() -> None:
            order = {"operation_id": "large", "bucket": BUCKET, "key": "large"}
            upload = client.post("/uploads", json=order).json()["id"]
            body = (BLOCK for _ in range(SIZE // len(BLOCK)))
            headers = {"content-length": str(SIZE)}
            answer = client.put(f"/uploads/{upload}/parts/1", content=body, headers=headers)
            assert answer.json()["sha256"] == expected
            done.append(CLIENTS - 1)

        done: list[int] = []
        threads = [threading.Thread(target=put_and_get, args=(n,)) for n in range(CLIENTS - 1)]
        threads.append(threading.Thread(target=put_part))
        with peak:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert sorted(done) == list(range(CLIENTS))
    assert peak.rss - before < ALLOWED_GROWTH, f"grew by {(peak.rss - before) / 2**20:.1f} MiB"


class _Peak:
    """Watches a process's memory while the block runs."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.rss = 0

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.rss = max(self.rss, self._process.memory_info().rss)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
