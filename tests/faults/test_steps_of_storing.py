"""SIGKILL at every step of upload, delete and review, on MariaDB, Redis and Ceph RGW.

And of the requests and the scheduler's work around them. Each worker dies at one step and another
goes on to the next, so that most tasks outlive a death at every step of their way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from shared.outbox.schema import tasks
from tests.acceptance.product import PART_BYTES, object_path, random_bytes
from tests.faults.files import Files
from tests.faults.ground import PATIENCE, Ground
from tests.faults.steps import DELETE, REQUESTS, REVIEW, SCHEDULER, UPLOAD
from tests.support.eventually import eventually
from tests.support.reviewer import running_reviewer

pytestmark = pytest.mark.timeout(300)

SMALL = 70_000
LARGE = 2 * PART_BYTES + 1000
GOOD, DOUBTFUL = b"A letter about the weather.", b"Perhaps a letter."
POLICY = {"reject_keywords": ["contraband"], "doubtful_keywords": ["perhaps"]}


def test_upload(ground: Ground, files: Files) -> None:
    files.tenant.bucket("slow", "slow")
    files.tenant.bucket("failing", "shaky", "main")
    ground.kill_in_task("upload", UPLOAD["small"], lambda: files.put(SMALL))
    ground.kill_in_task("upload", UPLOAD["large"], lambda: files.put(LARGE))
    ground.kill_in_task("upload", UPLOAD["slow"], lambda: files.put(LARGE, "slow"))
    ground.gate.shut()
    failing = UPLOAD["failing"]
    ground.kill_in_task("upload", failing, lambda: files.put(LARGE, "failing"), is_left=True)
    ground.gate.open()
    files.clean()


def test_upload_in_parts(ground: Ground, files: Files) -> None:
    http = files.tenant.http
    pieces = [random_bytes(PART_BYTES + 11), random_bytes(SMALL), random_bytes(1)]

    def begin(name: str) -> httpx.Response:
        return http.post("/uploads", json={"operation_id": name, "bucket": "files", "key": name})

    def send(upload: str, number: int) -> httpx.Response:
        return http.put(f"/uploads/{upload}/parts/{number}", content=pieces[number - 1])

    def begun(name: str) -> str:
        return str(begin(name).raise_for_status().json()["id"])

    def task() -> int:
        name = f"whole-{len(files.contents)}"
        files.contents[f"files/{name}"] = b"".join(pieces)
        upload = begun(name)
        for number in (1, 2, 3):
            send(upload, number).raise_for_status()
        done = http.post(f"/uploads/{upload}:complete").raise_for_status().json()
        return int(done["task_id"])

    ground.kill_in_task("upload", UPLOAD["assemble"], task)

    ground.kill_in_request(REQUESTS["begin"], lambda: begin("mine"))
    upload = begun("mine")
    ground.kill_in_request(REQUESTS["part"], lambda: send(upload, 1))
    send(upload, 1).raise_for_status()
    send(upload, 2).raise_for_status()
    complete = partial(http.post, f"/uploads/{upload}:complete")
    ground.kill_in_request(REQUESTS["complete"], complete)
    ground.completed(int(complete().raise_for_status().json()["task_id"]))
    assert complete().status_code == 200
    files.contents["files/mine"] = pieces[0] + pieces[1]

    given_up = begun("given up")
    send(given_up, 1).raise_for_status()
    # Its sweep does the same.
    ground.stop("scheduler")
    ground.kill_in_request(REQUESTS["abort"], lambda: http.delete(f"/uploads/{given_up}"))
    ground.need("scheduler")
    eventually(lambda: http.get(f"/uploads/{given_up}").status_code == 404, PATIENCE)
    files.clean()


def test_requests(ground: Ground, files: Files) -> None:
    tenant, http = files.tenant, files.tenant.http
    content, other = random_bytes(SMALL), random_bytes(LARGE)
    ground.kill_in_request(REQUESTS["put"], lambda: tenant.put("files/a", other))
    files.contents["files/a"] = content
    ground.need("upload")
    tenant.store("files/a", content)
    ground.kill_in_requests(REQUESTS["dispatched"], lambda: files.put(SMALL))
    ground.become_quiet()

    sha256 = hashlib.sha256(content).hexdigest()
    order = {"key": "b", "sha256": sha256, "size": len(content)}
    instant = partial(http.post, "/buckets/files/instant-uploads", json=order)
    ground.kill_in_request(REQUESTS["instant"], instant)
    assert instant().status_code in (200, 201)
    copy = partial(http.post, f"{object_path('files/a')}:copy", json={"key": "c"})
    ground.kill_in_request(REQUESTS["copy"], copy)
    assert copy().status_code in (200, 201)
    files.contents |= {"files/b": content, "files/c": content}

    ground.kill_in_request(REQUESTS["delete"], lambda: http.delete(object_path("files/c")))
    tenant.delete("files/c")
    assert tenant.get("files/c").status_code == 404
    del files.contents["files/c"]

    ground.stop("upload")
    task = int(tenant.put("files/d", other)["task_id"])
    cancel = partial(http.post, f"/tasks/{task}:cancel")
    ground.kill_in_request(REQUESTS["cancel"], cancel)
    assert cancel().status_code == 200
    assert ground.state(task) == "cancelled"
    tenant.delete("files/d")
    files.clean()


def test_delete(ground: Ground, files: Files) -> None:
    tenant, http = files.tenant, files.tenant.http

    def delete() -> int:
        path = files.store(SMALL)
        del files.contents[path]
        return int(http.delete(object_path(path)).headers["x-blox-task"])

    def revive() -> int:
        content = random_bytes(SMALL)
        tenant.store("files/revived", content)
        gone = http.delete(object_path("files/revived"))
        assert tenant.put("files/revived", content)["state"] == "stored"
        files.contents["files/revived"] = content
        return int(gone.headers["x-blox-task"])

    def remove() -> int:
        ground.need("upload")
        for number in range(3):
            tenant.store(f"files/p/{number}", random_bytes(SMALL))
        removal = http.post("/buckets/files/removals", json={"prefix": "p/"})
        return int(removal.raise_for_status().json()["task_id"])

    ground.kill_in_task("delete", DELETE["blob"], delete)
    ground.kill_in_task("delete", DELETE["revived"], revive)
    ground.kill_in_task("delete", DELETE["prefix"], remove)
    files.clean()
    listed = tenant.http.get("/buckets/files/objects").json()["items"]
    assert {f"files/{one['key']}" for one in listed} == set(files.contents)


def test_review(ground: Ground, files: Files) -> None:
    tenant, http = files.tenant, files.tenant.http
    tenant.bucket("reviewed", review_policy=POLICY)
    count = 0

    def put(text: bytes, bucket: str = "reviewed") -> int:
        nonlocal count
        count += 1
        content = b"%s %d" % (text, count)
        if text is GOOD:
            files.contents[f"{bucket}/{count}"] = content
        return int(tenant.put(f"{bucket}/{count}", content, "text/plain")["task_id"])

    ground.need("upload")
    ground.kill_in_task("review", REVIEW["local"], lambda: put(GOOD))

    for action in ("approve", "reject", "release"):
        if action != "release":
            ground.completed(put(DOUBTFUL))
        state = "rejected" if action == "release" else "doubtful"
        (review,) = http.get("/reviews", params={"state": state}).json()["items"]
        decide = partial(http.post, f"/reviews/{review['id']}:{action}")
        ground.kill_in_request(REQUESTS["decision"], decide)
        answer = decide()
        assert answer.status_code in (200, 409), answer.text
        decided = http.get(f"/reviews/{review['id']}").json()
        assert decided["state"] == ("rejected" if action == "reject" else "passed"), decided

    with running_reviewer() as reviewer:
        order = {"url": reviewer.url, "status_url": reviewer.status_url}
        order |= {"secrets": reviewer.secrets}
        http.put("/reviewers/mine", json=order).raise_for_status()
        spec = {"kind": "webhook", "name": "mine", "reviewer": "mine", "poll_seconds": 1}
        tenant.bucket("asked", review_policy={"reviewers": [spec]})
        task = ground.kill_in_task(
            "review", REVIEW["webhook"], lambda: put(GOOD, "asked"), is_left=True
        )
        question = next(one.question for one in reversed(reviewer.asked) if one.question)
        call = _callback(ground, reviewer, question)
        ground.kill_in_request(REQUESTS["callback"], call)
        call().raise_for_status()
        ground.need("review")
        ground.completed(task)
        assert reviewer.forged == 0

    def again() -> int:
        run = http.post("/buckets/reviewed:re-review").raise_for_status()
        return int(run.json()["task_id"])

    tenant.bucket("reviewed", review_policy={**POLICY, "doubtful_keywords": ["surely"]})
    ground.kill_in_task("review", REVIEW["again"], again)
    files.clean()


def _callback(ground: Ground, reviewer: Any, question: Any) -> Callable[[], httpx.Response]:
    def call() -> httpx.Response:
        answer = {"outcome": "pass", "reason": "fine"}
        headers, body = reviewer.message(answer, step_id=question["step_id"])
        address = f"{ground.api_url}{question['callback_path']}"
        return httpx.post(address, content=body, headers=headers)

    return call


def test_scheduler(ground: Ground, files: Files) -> None:
    ground.stop("upload")
    task = files.put(SMALL)
    ground.dies(ground.start("upload", die_at="upload.after_bytes"), "upload.after_bytes")
    ground.kill("scheduler")
    for step in SCHEDULER["task"]:
        if step == "fill.claimed":
            # Filled is only what somebody consumes: whoever fetches it will die, too.
            reader = ground.start("upload", die_at="fetch.after")
        elif step == "scan.dispatch_expired":
            wait_until_expired(ground, task)
        ground.kill_scheduler(step)
    ground.dies(reader, "fetch.after")
    ground.need("upload", "scheduler")
    ground.completed(task)

    ground.stop("upload")
    reader = ground.start("upload", die_at="fetch.after")
    task = files.put(SMALL)
    ground.dies(reader, "fetch.after")
    eventually(lambda: ground.state(task) == "dispatched", PATIENCE)
    for step in SCHEDULER["message"]:
        ground.kill_scheduler(step)
    ground.need("upload", "scheduler")
    ground.completed(task)

    # Bytes of an execution that is over, an upload that came too late, a file of a dead request:
    # each when its step is next, since those who die earlier sweep as well.
    ground.stop("upload")
    # A small one: a large upload is gone on with under the same key.
    lost = files.put(SMALL)
    ground.dies(ground.start("upload", die_at="upload.after_bytes"), "upload.after_bytes")
    # Before the next execution its intent is not over: no sweep takes it.
    ground.stop_sweeping()
    ground.start("upload")
    ground.completed(lost)
    for step in SCHEDULER["sweeps"]:
        if step == "sweep.aborted":
            key = f"{files.tenant.name}/ab/ab{'0' * 30}"
            ground.s3.create_multipart_upload(Bucket=ground.buckets["main"], Key=key)
        elif step == "storage.trashing":
            put = partial(files.tenant.put, "files/never", b"never" * 1000)
            ground.kill_in_request({"api.put.staged": ""}, put)
        ground.kill_scheduler(step)

    for number, step in enumerate(SCHEDULER["expiry"]):
        headers = {"x-blox-expires-in": "1"}
        path = object_path(f"files/short-{number}")
        files.tenant.http.put(path, content=random_bytes(10), headers=headers).raise_for_status()
        ground.kill_scheduler(step)
    files.clean()
    assert files.tenant.get("files/never").status_code == 404


def wait_until_expired(ground: Ground, task_id: int) -> None:
    """Wait until the dispatch of a task has not come through in time."""
    query = sa.select(tasks.c.state, tasks.c.lease_until < sa.func.utc_timestamp(6)).where(
        tasks.c.id == task_id
    )

    def is_expired() -> bool:
        with ground.engine.connect() as connection:
            return tuple(connection.execute(query).one()) == ("dispatching", 1)

    eventually(is_expired, PATIENCE)
