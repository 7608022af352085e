"""Copying on RGW: our transfers against `rclone copy` of the same files, interleaved in one run.

The same part size, files at a time and parts at a time on both sides, streamed and copied by the
server itself. Ours prove each copy; where the provider tells only the ETag of a multipart upload
they read it back and hash it, which rclone does not. Each line tells the ratio without the time in
which rclone starts and looks at both ends, too.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.stage import ROOT, Line, at_least, median
from shared.core.clock import Deadline
from shared.storage import Channels, ChannelSource, ChannelSpec, transfer
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
_NAMES = {
    "large": "large files",
    "small": "small files",
    "in parts": "large files stored in parts",
}


#: Key, size, SHA-256, and the MD5 where the source's ETag is one.
File = tuple[str, int, str, str | None]


@dataclass(frozen=True, slots=True)
class Case:
    """A way to copy, as we and as rclone name its ends."""

    title: str
    source: dict[str, Any]
    theirs_from: str
    theirs_to: str
    kinds: tuple[str, ...]
    is_by_server: bool = False


class Ours:
    """A process that copies as our services do."""

    def __init__(self, case: Case, target: dict[str, Any], files: list[File]) -> None:
        order = {
            "source": case.source,
            "target": target,
            "files": files,
            "transfers": TRANSFERS,
            "is_by_server": case.is_by_server,
        }
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
    # Two names for one server: only between two ends of one name it has the server copy.
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


def fill(rgw: CephRGW, folder: Path) -> dict[str, list[File]]:
    """Make the files in a bucket and a directory channel; those in parts in the bucket only."""
    directory = ChannelSpec("disk", "file", {"root": str(folder / "disk")})
    bucket = Channels().open(ChannelSpec(**spec(rgw, "source")))
    disk = Channels().open(directory)
    target = Channels().open(ChannelSpec(**spec(rgw, "target")))
    for opened in (bucket, disk, target):
        opened.channel.prepare(deadline=Deadline(60))
    files: dict[str, list[File]] = {"large": [], "small": [], "in parts": []}
    for kind, count, size in (
        ("large", LARGE_FILES, LARGE_BYTES),
        ("small", SMALL_FILES, SMALL_BYTES),
    ):
        for number in range(count):
            content = os.urandom(size)
            sha256, key = hashlib.sha256(content).hexdigest(), f"{kind}/{number:04}"
            for opened in (bucket, disk):
                opened.channel.put(key, Body(content), sha256=sha256, deadline=Deadline(60))
            files[kind].append((key, size, sha256, hashlib.md5(content).hexdigest()))
            if kind == "large":
                parts = f"in parts/{number:04}"
                whole = ChannelSource(disk.channel, key)
                transfer(whole, bucket, parts, size=size, sha256=sha256, deadline=Deadline(60))
                files["in parts"].append((parts, size, sha256, None))
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


def start_seconds(rgw: CephRGW, case: Case, folder: Path) -> float:
    """Return how long rclone takes for nothing: a folder whose one file is there already."""
    prefix = "nothing"
    one = folder / prefix
    one.mkdir(exist_ok=True)
    (one / "file").write_bytes(b"x")
    ends = str(one), f"{case.theirs_to}/{prefix}"
    rclone(rgw, *ends)
    return median([rclone(rgw, *ends) for _ in range(ROUNDS)])


def cases(rgw: CephRGW, folder: Path) -> tuple[Case, ...]:
    """Return the ways to copy."""
    bucket, disk = spec(rgw, "source"), folder / "disk"
    directory = {"name": "disk", "kind": "file", "settings": {"root": str(disk)}}
    both = ("large", "small")
    return (
        Case("bucket to bucket", bucket, "A:source", "B:target", both),
        Case("directory to bucket", directory, str(disk / "objects"), "B:target", both),
        Case(
            "copied by the server",
            bucket,
            "A:source",
            "A:target",
            (*both, "in parts"),
            is_by_server=True,
        ),
    )


def measure(rgw: CephRGW, case: Case, kind: str, files: list[File], start: float) -> Line:
    """Measure one line."""
    process = Ours(case, spec(rgw, "target"), files)
    paths = (f"{case.theirs_from}/{kind}", f"{case.theirs_to}/{kind}")
    ours, theirs = (median(taken) for taken in compare(rgw, process, *paths))
    process.stop()
    megabytes = sum(size for _, size, _, _ in files) / 1e6
    detail = (
        f"{megabytes / ours:,.1f} MB/s, rclone {megabytes / theirs:,.1f} MB/s;"
        f" without its start {(theirs - start) / ours:.2f} x"
    )
    what = f"{case.title}, {len(files)} {_NAMES[kind]}, against rclone copy"
    if case.is_by_server and kind == "in parts":
        # All of it is read back as the proof, and nothing is even copied where tails are shared.
        return Line(what, f"{theirs / ours:.2f} x ({detail})", "told, no target", holds=True)
    return at_least(what, theirs / ours, 0.8, detail)


def run() -> Iterable[Line]:
    """Measure and compare."""
    folder = Path(tempfile.mkdtemp(prefix="blox-copying-"))
    try:
        with running_rgw() as rgw:
            files = fill(rgw, folder)
            for case in cases(rgw, folder):
                start = start_seconds(rgw, case, folder)
                for kind in case.kinds:
                    yield measure(rgw, case, kind, files[kind], start)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
