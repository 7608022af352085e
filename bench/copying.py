"""Copying on RGW: our transfers against `rclone copy` of the same files, interleaved in one run.

The same part size, files at a time and parts at a time on both sides. Ours prove each copy by its
SHA-256; where the provider tells only the ETag of a multipart upload they read it back, which
rclone does not.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.stage import ROOT, Line, at_least, median
from shared.core.clock import Deadline
from shared.storage import Channels, ChannelSpec
from shared.storage.body import Body
from tests.servers.process import need_program
from tests.servers.rgw import CephRGW, running_rgw

MIB = 1024 * 1024
#: Large ones in parts, and small ones in single puts.
LARGE_FILES, LARGE_BYTES = 6, 32 * MIB
SMALL_FILES, SMALL_BYTES = 120, 64 * 1024
PART_BYTES = 8 * MIB
TRANSFERS, PARALLEL_PARTS = 2, 2
ROUNDS = 4
_PATIENCE_SECONDS = 600.0


class Ours:
    """A process that copies as our services do."""

    def __init__(self, source: dict[str, Any], target: dict[str, Any], files: list[Any]) -> None:
        order = {"source": source, "target": target, "files": files, "transfers": TRANSFERS}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.copy_worker", json.dumps(order)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._expect("ready")

    def copy(self, prefix: str) -> float:
        """Copy everything; returns the seconds."""
        assert self._process.stdin is not None
        start = time.perf_counter()
        self._process.stdin.write(f"{prefix}\n")
        self._process.stdin.flush()
        self._expect("done")
        return time.perf_counter() - start

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if line != word:
            raise RuntimeError(f"the copying process said {line!r}")


def rclone(rgw: CephRGW, source: str, target: str) -> float:
    """Copy with rclone; returns the seconds."""
    server = rgw.server
    remote = {
        "TYPE": "s3",
        "PROVIDER": "Ceph",
        "ENDPOINT": server.endpoint,
        "ACCESS_KEY_ID": server.access_key,
        "SECRET_ACCESS_KEY": server.secret_key,
        "CHUNK_SIZE": f"{PART_BYTES}B",
        "UPLOAD_CUTOFF": f"{PART_BYTES}B",
        "UPLOAD_CONCURRENCY": str(PARALLEL_PARTS),
    }
    # Two names for one server: otherwise it would have the server copy.
    variables = {f"RCLONE_CONFIG_{one}_{k}": v for one in "AB" for k, v in remote.items()}
    command = [need_program("rclone"), "copy", "--config=", f"--transfers={TRANSFERS}"]
    start = time.perf_counter()
    subprocess.run(
        [*command, source, target],
        env={"PATH": os.environ["PATH"], "HOME": tempfile.gettempdir(), **variables},
        check=True,
        timeout=_PATIENCE_SECONDS,
    )
    return time.perf_counter() - start


def spec(rgw: CephRGW, name: str) -> dict[str, Any]:
    """Return the channel of a bucket."""
    server = rgw.server
    return {
        "name": name,
        "kind": "s3",
        "settings": {
            "endpoint": server.endpoint,
            "bucket": name,
            "part_bytes": PART_BYTES,
            "parallel_parts": PARALLEL_PARTS,
        },
        "secrets": {"access_key": server.access_key, "secret_key": server.secret_key},
    }


def fill(rgw: CephRGW, folder: Path) -> dict[str, list[tuple[str, int, str]]]:
    """Make the files in a bucket and a directory channel; returns key, size and SHA-256."""
    directory = ChannelSpec("disk", "file", {"root": str(folder / "disk")})
    channels = [
        Channels().open(one).channel for one in (ChannelSpec(**spec(rgw, "source")), directory)
    ]
    for channel in (*channels, Channels().open(ChannelSpec(**spec(rgw, "target"))).channel):
        channel.prepare(deadline=Deadline(60))
    files: dict[str, list[tuple[str, int, str]]] = {"large": [], "small": []}
    for kind, count, size in (
        ("large", LARGE_FILES, LARGE_BYTES),
        ("small", SMALL_FILES, SMALL_BYTES),
    ):
        for number in range(count):
            content = os.urandom(size)
            sha256, key = hashlib.sha256(content).hexdigest(), f"{kind}/{number:04}"
            for channel in channels:
                channel.put(key, Body(content), sha256=sha256, deadline=Deadline(60))
            files[kind].append((key, size, sha256))
    return files


def empty(rgw: CephRGW) -> None:
    """Give the memory of the copies back."""
    channel = Channels().open(ChannelSpec(**spec(rgw, "target"))).channel
    for entry in channel.list(deadline=Deadline(60)):
        channel.delete(entry.key, deadline=Deadline(60))


def compare(
    rgw: CephRGW, process: Ours, source: str, target: str
) -> tuple[list[float], list[float]]:
    """Return the seconds of each round, ours and theirs; who begins takes turns."""
    ours: list[float] = []
    theirs: list[float] = []
    sides: list[tuple[list[float], Callable[[str], float]]] = [
        (ours, lambda name: process.copy(name)),
        (theirs, lambda name: rclone(rgw, source, f"{target}-{name}")),
    ]
    for number in range(ROUNDS + 1):
        for seconds, copy in sides[:: 1 if number % 2 else -1]:
            taken = copy(f"round-{number}")
            if number:  # The first one warms both up.
                seconds.append(taken)
            empty(rgw)
    return ours, theirs


def run() -> Iterable[Line]:
    """Measure and compare."""
    folder = Path(tempfile.mkdtemp(prefix="blox-copying-"))
    try:
        with running_rgw() as rgw:
            files = fill(rgw, folder)
            disk = {"name": "disk", "kind": "file", "settings": {"root": str(folder / "disk")}}
            sources = (
                ("bucket to bucket", spec(rgw, "source"), "A:source"),
                ("directory to bucket", disk, str(folder / "disk" / "objects")),
            )
            for title, ours_from, theirs_from in sources:
                for kind, listed in files.items():
                    process = Ours(ours_from, spec(rgw, "target"), listed)
                    paths = (f"{theirs_from}/{kind}", f"B:target/{kind}")
                    ours, theirs = compare(rgw, process, *paths)
                    process.stop()
                    megabytes = sum(size for _, size, _ in listed) / 1e6
                    mine, other = megabytes / median(ours), megabytes / median(theirs)
                    detail = f"{mine:,.1f} MB/s, rclone {other:,.1f} MB/s"
                    what = f"{title}, {len(listed)} {kind} files, against rclone copy"
                    yield at_least(what, mine / other, 0.8, detail)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
