"""Backups and restores over HTTP, a read that finds a loss, and the whole way back from one."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.orm import Session

from services.backup import actors as backing
from services.backup.deps import Deps as BackupDeps
from services.restore import actors as restoring
from services.restore.deps import Deps as RestoreDeps
from services.upload import actors as uploading
from services.upload.handlers import Deps as UploadDeps
from shared.catalog.backups.listing import MOST_KEYS
from shared.catalog.channels import ChannelInput, put_channel
from shared.catalog.kinds import register_kinds
from shared.core.clock import Deadline
from shared.outbox.outbox import Outbox
from shared.storage.registry import prepare_channel
from shared.storage.spec import ChannelSpec
from tests.integration.api.stack import CHANNEL, OTHER, Stack
from tests.support.eventually import eventually

pytestmark = pytest.mark.databases("mariadb")

BUCKET = "kept"
PATH = f"/buckets/{BUCKET}/objects"
RULE = {"target": "vault", "grace_seconds": 0}


@pytest.fixture
def vault(stack: Stack, tmp_path: Path) -> Path:
    """A second channel, and a bucket that is backed up to it."""
    root = tmp_path / "vault"
    prepare_channel(ChannelSpec("vault", "file", {"root": str(root)}), deadline=Deadline(10))
    with Session(stack.engine) as session, session.begin():
        channel = ChannelInput(name="vault", kind="file", settings={"root": str(root)})
        put_channel(session, channel, secrets=stack.deps.secrets)
    with stack.client() as client:
        answer = client.put(f"/buckets/{BUCKET}", json={"channels": [CHANNEL], "backup": RULE})
        assert (answer.status_code, answer.json()["backup"]["target"]) == (201, "vault")
    return root


@contextlib.contextmanager
def working(stack: Stack, redis_url: str, namespace: str) -> Iterator[None]:
    """Run the upload, backup and restore queues until the block ends."""
    outbox = Outbox(stack.engine, redis_url, namespace=namespace)
    catalogue = register_kinds(outbox, grace_seconds=0)
    parts: dict[str, Any] = {
        "db": outbox.context.db,
        "catalogue": catalogue,
        "channels": stack.deps.channels,
    }
    uploading.register(outbox, catalogue, UploadDeps(**parts, staging=stack.deps.staging))
    backing.register(outbox, catalogue, BackupDeps(**parts, settle_seconds=0.0))
    restoring.register(outbox, catalogue, RestoreDeps(**parts, staging=stack.deps.staging))
    stop = threading.Event()
    scans = threading.Thread(target=outbox.compensator().run, args=(stop,))
    outbox.start_worker(["upload", "backup", "restore"], threads=4)
    scans.start()
    try:
        yield
    finally:
        stop.set()
        scans.join(20)
        outbox.close(10)


def ended(client: httpx.Client, path: str) -> dict[str, Any]:
    """Wait until a backup or restore has ended; return it."""

    def look() -> dict[str, Any] | None:
        document: dict[str, Any] = client.get(path).json()
        return document if document["state"] != "open" else None

    found = eventually(look, 30)
    assert found is not None
    return found


def stored(client: httpx.Client, key: str, content: bytes) -> None:
    client.put(f"{PATH}/{key}", content=content)
    eventually(lambda: client.head(f"{PATH}/{key}").headers["x-blox-state"] == "stored", 20)


def test_a_content_with_many_keys_leaves_room_for_those_of_others(
    stack: Stack, vault: Path, redis_url: str, namespace: str
) -> None:
    with working(stack, redis_url, namespace), stack.client() as client:
        for key in ("a", "b"):
            stored(client, key, key.encode())
        more = [f"a{number:02}" for number in range(4 * MOST_KEYS)]
        for key in more:
            assert client.put(f"{PATH}/{key}", content=b"a").is_success
        begun = client.post(f"/buckets/{BUCKET}/backups").json()
        path = f"/buckets/{BUCKET}/backups/{begun['id']}"
        assert ended(client, path)["state"] == "complete"
        items = client.get(f"{path}/items").json()["items"]
        assert [one["keys"] for one in items] == [["a", *more[: MOST_KEYS - 1]], ["b"]]


def test_there_and_back_again(stack: Stack, vault: Path, redis_url: str, namespace: str) -> None:
    with working(stack, redis_url, namespace), stack.client() as client:
        for key in ("a", "b", "c"):
            stored(client, key, key.encode() * 1000)
        once = {"idempotency-key": "b1"}
        begun = client.post(f"/buckets/{BUCKET}/backups", headers=once)
        assert begun.status_code == 202, begun.text
        repeated = client.post(f"/buckets/{BUCKET}/backups", headers=once)
        assert repeated.json()["id"] == begun.json()["id"]
        run_path = f"/buckets/{BUCKET}/backups/{begun.json()['id']}"
        done = ended(client, run_path)
        assert (done["state"], done["counts"]["copied"]) == ("complete", 3), done
        assert client.get(f"/buckets/{BUCKET}/backups").json()["items"] == [done]
        contents = client.get(f"{run_path}/items", params={"limit": 2}).json()
        assert [one["keys"] for one in contents["items"]] == [["a"], ["b"]]
        assert {one["state"] for one in contents["items"]} == {"done"}
        rest = client.get(f"{run_path}/items", params={"cursor": contents["next_cursor"]}).json()
        assert [one["keys"] for one in rest["items"]] == [["c"]]
        lacking = client.get(f"{run_path}/items", params={"state": "failed"}).json()
        assert lacking == {"items": [], "next_cursor": None}

        # Everything that the channel held is gone. A read says so, and the bytes come back.
        objects = stack.channel_root / "objects"
        shutil.rmtree(objects)
        objects.mkdir()
        missing = client.get(f"{PATH}/a")
        assert (missing.status_code, missing.json()["code"]) == (503, "content_unavailable")
        assert int(missing.headers["retry-after"]) >= 1
        eventually(lambda: client.get(f"{PATH}/a").content == b"a" * 1000, 30)
        (loss,) = client.get("/losses").json()["items"]
        assert (loss["state"], loss["found_by"]) == ("restored", "read")
        order = {"mode": "content"}
        restore = client.post(f"/buckets/{BUCKET}/restores", json=order)
        assert restore.status_code == 202, restore.text
        searched = ended(client, f"/buckets/{BUCKET}/restores/{restore.json()['id']}")
        assert (searched["counts"]["lost"], searched["counts"]["present"]) == (2, 1)
        for key in ("b", "c"):
            eventually(lambda key=key: client.get(f"{PATH}/{key}").status_code == 200, 30)  # type: ignore[misc]
            assert client.get(f"{PATH}/{key}").content == key.encode() * 1000

        # A deletion is undone; nothing is written by a dry run.
        client.delete(f"{PATH}/a")
        for dry in (True, False):
            order = {"prefix": "a", "dry_run": dry}  # type: ignore[dict-item]
            posted = client.post(f"/buckets/{BUCKET}/restores", json=order).json()
            path = f"/buckets/{BUCKET}/restores/{posted['id']}"
            assert ended(client, path)["counts"]["restored"] == 1
            assert client.get(f"{PATH}/a").status_code == (404 if dry else 200)
        (item,) = client.get(f"{path}/items").json()["items"]
        assert (item["key"], item["outcome"], item["size"]) == ("a", "restored", 1000)
        assert client.get(f"{path}/items", params={"outcome": "refused"}).json()["items"] == []
        assert client.get(f"/buckets/{BUCKET}/restores").json()["items"][0]["id"] == posted["id"]

        for key in ("a", "b", "c"):
            client.delete(f"{PATH}/{key}")
        refused = client.delete(f"/buckets/{BUCKET}")
        assert (refused.status_code, refused.json()["code"]) == (409, "bucket_has_backups")
        assert client.delete(run_path).status_code == 204
        assert client.get(run_path).json()["state"] == "pruned"
        eventually(lambda: not [p for p in (vault / "objects").rglob("*") if p.is_file()], 20)
        assert client.delete(f"/buckets/{BUCKET}").status_code == 204


def test_one_open_backup_may_be_cancelled(stack: Stack, vault: Path) -> None:
    with stack.client() as client, stack.client(tenant=OTHER) as theirs:
        run = client.post(f"/buckets/{BUCKET}/backups").json()
        busy = client.post(f"/buckets/{BUCKET}/backups")
        assert (busy.status_code, busy.json()["code"]) == (409, "backup_open")
        early = client.delete(f"/buckets/{BUCKET}/backups/{run['id']}")
        assert (early.status_code, early.json()["code"]) == (409, "backup_not_complete")
        cancel = f"/buckets/{BUCKET}/backups/{run['id']}:cancel"
        assert theirs.post(cancel).status_code == 404
        assert client.post(cancel).json()["state"] == "cancelled"
        assert client.get(f"/tasks/{run['task_id']}").json()["state"] == "cancelled"
        assert client.post(cancel).status_code == 200
        none = client.post(f"/buckets/{BUCKET}/restores", json={})
        assert (none.status_code, none.json()["code"]) == (404, "backup_not_found")
        search = client.post(f"/buckets/{BUCKET}/restores", json={"mode": "content"}).json()
        stopped = client.post(f"/buckets/{BUCKET}/restores/{search['id']}:cancel")
        assert stopped.json()["state"] == "cancelled"


def test_bad_rules_and_orders_are_refused(stack: Stack, vault: Path) -> None:
    with stack.client() as client:

        def rule(**changed: Any) -> httpx.Response:
            rules = {"channels": [CHANNEL], "backup": {**RULE, **changed}}
            return client.put(f"/buckets/{BUCKET}", json=rules)

        assert rule(target="nowhere").json()["code"] == "channel_unknown"
        assert rule(target=CHANNEL).json()["code"] == "backup_target_own"
        for wrong in ({"mode": "x"}, {"interval_seconds": 1}, {"keep_runs": 0}, {"keep_days": 0.1}):
            assert rule(**wrong).status_code == 422, wrong
        for order in (
            {"mode": "x"},
            {"policy": "x"},
            {"run": 0},
            {"prefix": "k" * 1025},
            {"prefix": "é" * 513},
            {"at": "yesterday"},
            {"extra": 1},
        ):
            answer = client.post(f"/buckets/{BUCKET}/restores", json=order)
            assert answer.status_code == 422, order
        assert client.post("/buckets/photos/backups").json()["code"] == "backup_rule_missing"
        assert client.post("/buckets/none/backups").status_code == 404
        assert client.get(f"/buckets/{BUCKET}/backups/1").status_code == 404
        for order in (
            {"mode": "content", "at": "2026-01-01T00:00:00Z"},
            {"mode": "content", "run": 1},
            {"mode": "content", "policy": "always"},
            {"mode": "keys", "deep": True},
        ):
            refused = client.post(f"/buckets/{BUCKET}/restores", json=order)
            assert (refused.status_code, refused.json()["code"]) == (400, "restore_mode"), order
        assert client.get(f"/buckets/{BUCKET}/restores/1/items").status_code == 404
    with stack.client("objects:read") as reader:
        assert reader.get("/losses").status_code == 403
        assert reader.post(f"/buckets/{BUCKET}/backups").status_code == 403


def test_queues_that_are_switched_off_answer_501(stack: Stack, vault: Path) -> None:
    off = replace(stack.deps.catalogue, switched_off=frozenset({"backup", "restore"}))
    object.__setattr__(stack.deps, "catalogue", off)
    with stack.client() as client:
        for path, order in (("backups", {}), ("restores", {"mode": "content"})):
            answer = client.post(f"/buckets/{BUCKET}/{path}", json=order)
            assert (answer.status_code, answer.json()["code"]) == (501, "switched_off")
        rules = {"channels": [CHANNEL], "backup": {**RULE, "keep_runs": 3}}
        refused = client.put(f"/buckets/{BUCKET}", json=rules)
        assert (refused.status_code, refused.json()["code"]) == (501, "switched_off")
        kept = {"channels": [CHANNEL], "backup": RULE, "max_object_bytes": 5}
        assert client.put(f"/buckets/{BUCKET}", json=kept).status_code == 200
        assert stack.count("tasks") == 0
