"""A file of 1 GiB through upload, replica and backup, and back into channels that were emptied.

Shows that the bytes are the same at the end and what each process holds in memory at its most.
`python -m bench chain`.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import boto3
import httpx
from botocore.config import Config

from bench import large
from bench.large import BYTES, MIB, PART_BYTES, WORKER_MIB, Memory, pieces
from bench.stage import Line, at_most, wait_until
from services.cli.supervisor import EmbeddedStack
from tests.servers.mariadb import running_mariadb
from tests.servers.rgw import CephRGW, running_rgw

#: The bucket's own channel, that of its replicas, and that of its backups.
_CHANNELS = ("main", "spare", "vault")
_WORKERS = {"upload": 1, "replica": 1, "backup": 1, "restore": 1, "delete": 1}
_PATIENCE_SECONDS = 900.0
_PATH = "/buckets/bench/objects/large"


def variables(rgw: CephRGW, database_url: str) -> dict[str, str]:
    """Return the settings of the stack: staging and three channels, each a bucket."""
    found = large.variables(rgw, database_url)
    for name in _CHANNELS[1:]:
        for key, value in list(found.items()):
            if key.startswith("BLOX_CHANNELS__MAIN__"):
                found[key.replace("MAIN", name.upper())] = value
        found[f"BLOX_CHANNELS__{name.upper()}__BUCKET"] = name
    return found


class Chain:
    """The way there and back, step by step."""

    def __init__(self, client: httpx.Client, rgw: CephRGW) -> None:
        self._client = client
        self._rgw = rgw
        self.seconds: dict[str, float] = {}

    def there(self) -> str:
        """Store, replicate and back up the file; returns its SHA-256."""
        order = {
            "channels": ["main"],
            "replica_channels": ["spare"],
            "backup": {"target": "vault", "interval_seconds": 86_400},
        }
        self._client.put("/buckets/bench", json=order).raise_for_status()
        sha256 = hashlib.sha256()

        def body() -> Iterator[bytes]:
            for piece in pieces():
                sha256.update(piece)
                yield piece

        headers = {"content-length": str(BYTES)}
        self._timed("put", lambda: self._client.put(_PATH, content=body(), headers=headers))
        self._wait("upload", lambda: self._client.head(_PATH).headers["x-blox-state"] == "stored")
        self._wait("replica", self._is_replicated)
        run = self._client.post("/buckets/bench/backups").raise_for_status().json()
        address = f"/buckets/bench/backups/{run['id']}"
        self._wait("backup", lambda: self._state(address) == "complete")
        return sha256.hexdigest()

    def lose(self) -> int:
        """Empty the bucket's own channel and that of its replicas; returns how many keys went."""
        server, count = self._rgw.server, 0
        s3: Any = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
            region_name=server.region,
            config=Config(s3={"addressing_style": "path"}),
        )
        for bucket in _CHANNELS[:2]:
            for one in s3.list_objects_v2(Bucket=bucket).get("Contents", ()):
                s3.delete_object(Bucket=bucket, Key=one["Key"])
                count += 1
        return count

    def back(self) -> str:
        """Have what is lost searched for and brought back; returns the SHA-256 that a GET gives."""
        search = self._client.post("/buckets/bench/restores", json={"mode": "content"})
        address = f"/buckets/bench/restores/{search.raise_for_status().json()['id']}"
        self._wait("search", lambda: self._state(address) == "complete")
        self._wait("restore", self._is_whole)
        sha256 = hashlib.sha256()
        with self._client.stream("GET", _PATH) as answer:
            answer.raise_for_status()
            for chunk in answer.iter_bytes():
                sha256.update(chunk)
        return sha256.hexdigest()

    def _is_replicated(self) -> bool:
        answer = self._client.get("/replicas", params={"state": "completed"}).raise_for_status()
        return len(answer.json()["items"]) == 1

    def _is_whole(self) -> bool:
        losses = self._client.get("/losses").raise_for_status().json()["items"]
        return bool(losses) and all(one["state"] == "restored" for one in losses)

    def _state(self, address: str) -> str:
        return str(self._client.get(address).raise_for_status().json()["state"])

    def _timed(self, name: str, act: Callable[[], httpx.Response]) -> None:
        start = time.perf_counter()
        act().raise_for_status()
        self.seconds[name] = time.perf_counter() - start

    def _wait(self, name: str, condition: Callable[[], bool]) -> None:
        start = time.perf_counter()
        wait_until(condition, _PATIENCE_SECONDS, 0.2)
        self.seconds[name] = time.perf_counter() - start


def run() -> Iterable[Line]:
    """Do it and tell."""
    folder = Path(tempfile.mkdtemp(prefix="blox-chain-"))
    try:
        with running_mariadb() as mariadb, running_rgw() as rgw:
            url = mariadb.url(mariadb.create_database("chain"))
            with (
                EmbeddedStack(folder, variables=variables(rgw, url), workers=_WORKERS) as stack,
                Memory(stack) as memory,
                httpx.Client(base_url=f"{stack.api_url}/v1", timeout=_PATIENCE_SECONDS) as client,
            ):
                client.headers["authorization"] = f"Bearer {stack.admin_key}"
                chain = Chain(client, rgw)
                sent = chain.there()
                lost = chain.lose()
                got = chain.back()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in chain.seconds.items())
    what = f"bytes after {BYTES // MIB} MiB in parts of {PART_BYTES // MIB}, {lost} copies lost"
    yield Line(f"{what} ({times})", "equal" if sent == got else "other", "equal", sent == got)
    for name, most in sorted(memory.most.items()):
        if name in _WORKERS or name == "api":
            yield at_most(f"memory of {name}", most, WORKER_MIB, "MiB")
