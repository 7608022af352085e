"""SIGKILL at every step of replica, origin, backup and restore, on MariaDB, Redis and Ceph RGW.

As in the tests of storing: each worker dies at one step and another goes on to the next. It takes
four minutes, so `make test-faults` runs it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial

import pytest

from shared.catalog.payloads import (
    BACKUP_ITEM,
    BACKUP_PRUNE,
    REPLICA_COPY,
    RESTORE_BLOB,
)
from tests.acceptance.product import PART_BYTES, object_path, random_bytes
from tests.faults.files import Files
from tests.faults.ground import PATIENCE, Ground
from tests.faults.steps import AUDIT, BACKUP, BACKUP_SWEEPS, ORIGIN, REPLICA, REQUESTS, RESTORE
from tests.support.eventually import eventually
from tests.support.upstream import Asked, Upstream, answer, ranged

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

MIB = 1024 * 1024
SMALL = 70_000
LARGE = 2 * PART_BYTES + 1000
BACKED_UP = {"target": "vault", "keep_runs": 1, "grace_seconds": 0}


def test_replica(ground: Ground, files: Files) -> None:
    tenant, http = files.tenant, files.tenant.http
    tenant.bucket("copied", replica_channels=["spare"])
    tenant.bucket("failing", replica_channels=["shaky"])

    def copy(bucket: str) -> int:
        return ground.made_by(lambda: files.store(LARGE, bucket), REPLICA_COPY)

    ground.kill_in_task("replica", REPLICA["copy"], lambda: copy("copied"))
    ground.gate.shut()
    failing = REPLICA["failing"]
    ground.kill_in_task("replica", failing, lambda: copy("failing"), is_left=True)
    ground.gate.open()
    ground.need("replica")

    tenant.bucket("else", "spare")
    tenant.bucket("broken", "shaky")
    count = 0

    def copy_object(bucket: str) -> int:
        nonlocal count
        count += 1
        # New content each time: what is on the channel already needs no bytes.
        path = files.store(LARGE)
        files.contents[f"{bucket}/copy-{count}"] = files.contents[path]
        order = {"bucket": bucket, "key": f"copy-{count}"}
        begun = http.post(f"{object_path(path)}:copy", json=order)
        assert begun.status_code == 202, begun.text
        return int(begun.json()["task_id"])

    ground.kill_in_task("replica", REPLICA["object"], lambda: copy_object("else"))
    ground.stop("replica")
    ground.gate.shut()
    failing = REPLICA["object failing"]
    ground.kill_in_task("replica", failing, lambda: copy_object("broken"), is_left=True)
    ground.gate.open()
    ground.need("replica")
    files.clean("replica")

    for step in AUDIT["compared"]:
        ground.kill_scheduler(step)
    ground.lose("spare")
    for step in AUDIT["looked"]:
        ground.kill_scheduler(step)
    ground.need("scheduler", "replica", "restore")
    files.clean("replica", "restore")
    tenant.bucket("copied", replica_channels=[])
    for step in AUDIT["let go"]:
        ground.kill_scheduler(step)
    files.clean("replica", "restore")


def test_origin(ground: Ground, files: Files) -> None:
    tenant, http = files.tenant, files.tenant.http
    count = 0
    with Upstream() as upstream:
        source = {"url": upstream.url}
        rule = {"sources": [source], "tries": 12, "mode": "background"}
        tenant.bucket("mirror", origin={"rules": [rule]})

        def begin(key: str) -> int:
            order = {"key": key}
            begun = http.post("/buckets/mirror/origin-pulls", json=order).raise_for_status()
            return int(begun.json()["task_id"])

        def small() -> int:
            nonlocal count
            count += 1
            content = random_bytes(SMALL)
            upstream.routes[f"/small-{count}"] = answer(content)
            files.contents[f"mirror/small-{count}"] = content
            return begin(f"small-{count}")

        def large() -> int:
            content = random_bytes(3 * MIB)
            upstream.routes["/large"] = breaking(content)
            files.contents["mirror/large"] = content
            return begin("large")

        ground.need("upload")
        ground.kill_in_task("origin", ORIGIN["small"], small)
        ground.kill_in_task("origin", ORIGIN["resumed"], large)

        content = random_bytes(SMALL)
        upstream.routes["/asked"] = answer(content)
        pull = http.build_request("GET", object_path("mirror/asked"))
        ground.kill_in_request(REQUESTS["pull"], lambda: http.send(pull))
        eventually(lambda: tenant.get("mirror/asked").content == content, PATIENCE)
        files.contents["mirror/asked"] = content
        files.clean("origin")


def breaking(content: bytes) -> Callable[[socket.socket, Asked], None]:
    """Break off in the middle of an answer without a length; ranges are served to the end."""
    again = ranged(content)

    def script(connection: socket.socket, asked: Asked) -> None:
        if "range" in asked.headers:
            again(connection, asked)
            return
        head = 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nETag: "v1"\r\n\r\n'
        half = content[: 2 * MIB]
        connection.sendall(head.encode() + b"%x\r\n" % len(half) + half + b"\r\n")

    return script


def back_up(files: Files, bucket: str) -> int:
    """Ask for a backup, or find the one that the bucket's rule has begun; returns the task."""
    http = files.tenant.http
    begun = http.post(f"/buckets/{bucket}/backups")
    if begun.status_code == 409:
        listed = http.get(f"/buckets/{bucket}/backups", params={"state": "open"}).json()
        return int(listed["items"][0]["task_id"])
    return int(begun.raise_for_status().json()["task_id"])


def test_backup(ground: Ground, files: Files) -> None:
    tenant = files.tenant
    for bucket in ("kept", "failing", "swept"):
        tenant.bucket(bucket)
        files.store(SMALL if bucket == "swept" else LARGE, bucket)
    ground.gate.shut()
    tenant.bucket("failing", backup={**BACKED_UP, "target": "shaky"})
    ground.kill_in_task(
        "backup", BACKUP["failing"], lambda: back_up(files, "failing"), is_left=True
    )
    ground.gate.open()
    tenant.bucket("kept", backup=BACKED_UP)
    ground.kill_in_task("backup", BACKUP["run"], lambda: back_up(files, "kept"))

    # The next run takes the place of the first, whose pruning begins at once.
    kept = next(path for path in files.contents if path.startswith("kept/"))
    tenant.delete(kept)
    del files.contents[kept]
    files.store(SMALL, "kept")
    ground.need("delete")
    ground.become_quiet()
    ground.stop("backup")
    # A sweep would take what a pruning has condemned.
    ground.stop_sweeping()
    first_step = next(iter(BACKUP["prune"]))
    child = ground.start("backup", die_at=first_step)
    back_up(files, "kept")
    ground.dies(child, first_step)
    ground.kill_in_task("backup", BACKUP["prune"], lambda: ground.last(BACKUP_PRUNE))

    # Its grace is that of the whole target: nothing is pruned there for days.
    tenant.bucket("following", backup={**BACKED_UP, "mode": "continuous"})
    follow = partial(files.store, LARGE, "following")
    ground.kill_in_task("backup", BACKUP["item"], lambda: ground.made_by(follow, BACKUP_ITEM))

    ground.stop("backup")
    child = ground.start("backup", die_at="backup.after_bytes")
    rule = partial(tenant.bucket, "swept", backup=BACKED_UP)
    item = ground.made_by(rule, BACKUP_ITEM)
    ground.dies(child, "backup.after_bytes")
    ground.stop_sweeping()
    ground.start("backup")
    ground.completed(item)
    for step in BACKUP_SWEEPS["sweeps"]:
        ground.kill_scheduler(step)
    files.clean("backup")


def test_restore(ground: Ground, files: Files) -> None:
    tenant, http = files.tenant, files.tenant.http
    tenant.bucket("kept")
    tenant.bucket("shaky", "shaky")
    shaky = files.store(SMALL, "shaky")
    kept = [files.store(LARGE, "kept") for _ in range(4)]
    tenant.bucket("kept", backup=BACKED_UP)
    tenant.bucket("shaky", "shaky", backup=BACKED_UP)
    ground.need("backup")
    runs = [back_up(files, bucket) for bucket in ("kept", "shaky")]
    for run in runs:
        ground.completed(run)

    def lose(path: str, channel: str) -> int:
        ground.lose(channel, files.contents[path])
        return ground.made_by(lambda: tenant.get(path), RESTORE_BLOB)

    ground.kill_in_task("restore", RESTORE["blob"], lambda: lose(kept[0], "main"))
    ground.gate.shut_at(b"PUT /")
    ground.kill_in_task("restore", RESTORE["failing"], lambda: lose(shaky, "shaky"), is_left=True)
    ground.gate.open()

    def search() -> int:
        ground.lose("main", files.contents[kept[1]])
        begun = http.post("/buckets/kept/restores", json={"mode": "content"})
        return int(begun.raise_for_status().json()["task_id"])

    def bring_back() -> int:
        for path in kept[2:]:
            tenant.delete(path)
        ground.need("delete")
        ground.become_quiet()
        begun = http.post("/buckets/kept/restores", json={"mode": "keys"})
        return int(begun.raise_for_status().json()["task_id"])

    ground.kill_in_task("restore", RESTORE["search"], search)
    ground.become_quiet()
    ground.kill_in_task("restore", RESTORE["keys"], bring_back)
    files.clean("backup", "restore")
