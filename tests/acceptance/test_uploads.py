"""An upload in parts outlives every process that has a hand in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

import httpx

from tests.acceptance.product import PART_BYTES, PATIENCE, Product, Tenant, random_bytes
from tests.support.eventually import eventually

PART = 2 * 1024 * 1024
CONTENT = random_bytes(3 * PART + 12_345)
PARTS = [CONTENT[start : start + PART] for start in range(0, len(CONTENT), PART)]
#: Whose death an upload must outlive, wherever it stands.
PROCESSES = ("api", "upload", "scheduler")


def kill_all(product: Product) -> None:
    """SIGKILL every process; they come back by themselves."""
    for name in PROCESSES:
        product.stack.kill(name)
    product.stack.wait_ready(PATIENCE, *PROCESSES)


def patient(request: Callable[[], httpx.Response]) -> httpx.Response:
    """Ask again while nobody answers, as every client of a resumable upload does."""

    def once() -> httpx.Response | None:
        try:
            return request()
        except httpx.TransportError:
            return None

    answer = eventually(once, PATIENCE)
    assert answer is not None
    return answer


def test_an_upload_in_parts_outlives_every_process(product: Product, tenant: Tenant) -> None:
    http = tenant.http
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    order = {
        "operation_id": "film-1",
        "bucket": "files",
        "key": "film.mp4",
        "size": len(CONTENT),
        "sha256": sha256,
        "part_bytes": PART,
    }
    upload = patient(lambda: http.post("/uploads", json=order)).json()["id"]
    path = f"/uploads/{upload}"
    for number in (4, 1):
        patient(partial(http.put, f"{path}/parts/{number}", content=PARTS[number - 1]))
    kill_all(product)
    there = patient(lambda: http.get(path)).json()
    assert there["state"] == "open"
    assert [part["number"] for part in there["parts"]] == [1, 4]
    assert patient(lambda: http.post("/uploads", json=order)).json()["id"] == upload
    for number in (2, 3):
        patient(partial(http.put, f"{path}/parts/{number}", content=PARTS[number - 1]))
    product.stack.stop_process("upload")
    accepted = patient(lambda: http.post(f"{path}:complete"))
    assert accepted.status_code == 202, accepted.text
    product.stack.kill("api")
    product.stack.start_process("upload")
    product.stack.wait_ready(PATIENCE, "api", "upload")
    assert tenant.ended(accepted.json()["task_id"])["state"] == "completed"
    done = patient(lambda: http.post(f"{path}:complete"))
    assert done.status_code == 200, done.text
    result = done.json()["result"]
    whole = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in PARTS))
    assert (result["etag"], result["sha256"]) == (f"{whole.hexdigest()}-4", sha256)
    assert tenant.ended(result["task_id"])["state"] == "completed"
    assert tenant.get("files/film.mp4").content == CONTENT
    (physical,) = product.keys_on("main", tenant)
    assert product.content("main", physical) == CONTENT
    product.stack.kill("api")
    product.stack.wait_ready(PATIENCE, "api")
    assert patient(lambda: http.post(f"{path}:complete")).json() == done.json()
    assert patient(lambda: http.post("/uploads", json=order)).json()["result"] == result
    # Two parts to the channel, four from the client: each side cuts as it likes.
    assert PART < PART_BYTES < len(CONTENT)
