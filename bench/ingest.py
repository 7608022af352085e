"""PUT of 256 MiB: our API against a bare asyncio server that does the same to the bytes.

Both run as one process on the same disk; the clients are processes of their own that send from
memory. No worker runs, so that only the taking in is measured. Rounds are interleaved.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import psutil

from bench.stage import ROOT, Line, at_least, at_most, median
from services.cli.supervisor import EmbeddedStack
from tests.servers.mariadb import running_mariadb

MIB = 1024 * 1024
BODY_BYTES = 256 * MIB
ROUNDS = 5
_PIECE = MIB


def send(port: int, head: str, begin: float) -> None:
    """Send one body and wait for the head of the answer; SystemExit for anything but 202."""
    piece = bytearray(os.urandom(_PIECE))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        time.sleep(max(0.0, begin - time.time()))
        connection.sendall(head.encode())
        for number in range(BODY_BYTES // _PIECE):
            piece[:8] = number.to_bytes(8, "big")
            connection.sendall(piece)
        answer = connection.recv(65536)
        if b" 202 " not in answer.partition(b"\r\n")[0]:
            raise SystemExit(answer[:300].decode(errors="replace"))


def rate(port: int, heads: list[str]) -> float:
    """Send one body per head at the same time; returns MB/s in all."""
    context = multiprocessing.get_context("spawn")
    begin = time.time() + 1.5
    clients = [context.Process(target=send, args=(port, head, begin)) for head in heads]
    for client in clients:
        client.start()
    for client in clients:
        client.join(300)
    seconds = time.time() - begin
    if any(client.exitcode != 0 for client in clients):
        raise RuntimeError("a client had no 202")
    return len(heads) * BODY_BYTES / 1e6 / seconds


@contextlib.contextmanager
def bare(folder: Path) -> Iterator[int]:
    """Run the bare server; gives its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.bare_server", str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(10)


def our_heads(key: str, count: int, round_: int) -> list[str]:
    """Return the heads of PUTs to our API."""
    return [
        f"PUT /v1/buckets/bench/objects/{round_}-{count}-{number} HTTP/1.1\r\nhost: bench\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {BODY_BYTES}\r\n\r\n"
        for number in range(count)
    ]


def bare_heads(count: int) -> list[str]:
    """Return the heads of PUTs to the bare server."""
    return [f"PUT / HTTP/1.1\r\ncontent-length: {BODY_BYTES}\r\n\r\n"] * count


def prepare(stack: EmbeddedStack) -> None:
    """Make the bucket, and send one small body, so that nothing is done for the first time."""
    with httpx.Client(base_url=f"{stack.api_url}/v1", timeout=30) as client:
        client.headers["authorization"] = f"Bearer {stack.admin_key}"
        client.put("/buckets/bench", json={"channels": ["a"]}).raise_for_status()
        client.put("/buckets/bench/objects/warm", content=b"x" * MIB).raise_for_status()


def run() -> Iterable[Line]:
    """Measure and compare."""
    folder = Path(tempfile.mkdtemp(prefix="blox-ingest-"))
    (folder / "bare").mkdir()
    ours: dict[int, list[float]] = {1: [], 4: []}
    plain: dict[int, list[float]] = {1: [], 4: []}
    try:
        with running_mariadb() as mariadb, bare(folder / "bare") as bare_port:
            url = mariadb.url(mariadb.create_database("ingest"))
            variables = {"BLOX_DATABASE_URL": url, "BLOX_STAGING__MIN_FREE_BYTES": "0"}
            with EmbeddedStack(folder / "stack", variables=variables, workers={}) as stack:
                prepare(stack)
                port = int(stack.api_url.rpartition(":")[2])
                api = psutil.Process(stack.pids()["api"])
                before = api.memory_info().rss
                most = before
                for number in range(ROUNDS):
                    for count in (1, 4):
                        heads = our_heads(stack.admin_key, count, number)
                        ours[count].append(rate(port, heads))
                        most = max(most, api.memory_info().rss)
                        _empty(stack.layout.staging)
                        plain[count].append(rate(bare_port, bare_heads(count)))
                        _empty(folder / "bare")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for count in (1, 4):
        mine, theirs = median(ours[count]), median(plain[count])
        yield at_least(
            f"PUT of 256 MiB, {count} at a time, against a bare asyncio server",
            mine / theirs,
            0.85,
            f"{mine:,.0f} MB/s, bare {theirs:,.0f} MB/s",
        )
    yield at_most("growth of the API's memory over all of them", (most - before) / MIB, 32, "MiB")


def _empty(folder: Path) -> None:
    # Large files only: the disk would be full after a few rounds.
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size == BODY_BYTES:
            path.unlink()
    os.sync()
