"""Tasks as people handle them: over HTTP and on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.acceptance.product import PART_BYTES, PATIENCE, Product, Tenant, random_bytes
from tests.support.eventually import eventually


@pytest.fixture
def no_uploads(product: Product) -> Iterator[None]:
    """Nobody takes uploads until the test has the worker started again."""
    product.stack.stop_process("upload")
    yield
    start_uploads(product)


def start_uploads(product: Product) -> None:
    product.stack.start_process("upload")
    product.stack.wait_ready(PATIENCE, "upload")


@pytest.mark.usefixtures("no_uploads")
def test_a_waiting_task_is_cancelled_and_run_again(product: Product, tenant: Tenant) -> None:
    content = random_bytes(1000)
    task_id = tenant.put("files/a", content)["task_id"]

    listed = product.blox("tasks", "list", "--tenant", tenant.name, "-o", "json")
    assert listed.code == 0, listed.err
    (row,) = json.loads(listed.out)
    assert (row["id"], row["kind"], row["tenant_id"]) == (task_id, "upload.store", tenant.name)
    assert row["state"] not in ("running", "completed")

    cancelled = product.blox("tasks", "cancel", str(task_id), "--reason", "a mistake")
    assert cancelled.code == 0, cancelled.err
    assert "cancelled" in cancelled.out
    # Acknowledged bytes stay readable whatever becomes of the task.
    assert tenant.state("files/a") == "failed"
    assert tenant.get("files/a").content == content

    retried = product.blox("tasks", "retry", str(task_id), "--reason", "not a mistake")
    assert (retried.code, retried.err) == (0, "")
    assert "pending" in retried.out
    start_uploads(product)
    assert tenant.ended(task_id)["state"] == "completed"
    assert tenant.state("files/a") == "stored"

    shown = product.blox("tasks", "show", str(task_id))
    assert shown.code == 0, shown.err
    for word in ("completed", "cancelled", "manual_retry", "a mistake", "not a mistake"):
        assert word in shown.out
    detail = json.loads(product.blox("tasks", "show", str(task_id), "-o", "json").out)
    assert detail["state"] == "completed"
    assert detail["created_at"].endswith("Z")
    assert [event["data"]["to"] for event in detail["events"] if "to" in event["data"]][-1] == (
        "completed"
    )
    audit = tenant.http.get("/audit", params={"task": task_id}).raise_for_status().json()
    assert [item["action"] for item in audit["items"]] == ["retry", "cancel"]


def test_a_cancelled_task_that_runs_never_completes(product: Product, tenant: Tenant) -> None:
    tenant.bucket("slow", "slow")
    content = random_bytes(2 * PART_BYTES)
    task_id = tenant.put("slow/a", content)["task_id"]
    eventually(lambda: tenant.task(task_id)["state"] == "running", PATIENCE, interval_seconds=0.05)
    answer = tenant.http.post(f"/tasks/{task_id}:cancel", json={"reason": "too slow"})
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelling")
    task = tenant.ended(task_id)
    assert (task["state"], task["error_code"]) == ("cancelled", "cancelled")
    assert tenant.get("slow/a").content == content
    states = {event["data"].get("to") for event in task["events"]}
    assert "completed" not in states
    # What it had sent is swept; nothing of it stays on the channel.
    bucket, s3 = product.buckets["slow"], product.s3
    eventually(
        lambda: not s3.list_multipart_uploads(Bucket=bucket).get("Uploads"),
        PATIENCE,
        interval_seconds=0.2,
    )
    assert product.keys_on("slow", tenant) == []


def test_what_cannot_be_done_has_its_exit_code(product: Product, tenant: Tenant) -> None:
    task_id = str(tenant.store("files/a", random_bytes(100))["id"])
    for arguments, code, words in (
        (("tasks", "show", "999999999"), 3, "there is no task 999999999"),
        (("tasks", "retry", "999999999"), 3, "there is no task 999999999"),
        (("tasks", "retry", task_id), 4, "completed: only force runs it again"),
        (("tasks", "cancel", task_id), 4, "the task is completed"),
        (("buckets", "show", tenant.name, "nowhere"), 3, "there is no such bucket"),
        (("tasks", "show", "many"), 2, "should be a valid integer"),
    ):
        ran = product.blox(*arguments)
        assert (ran.code, ran.out) == (code, ""), (arguments, ran)
        assert words in ran.err, (arguments, ran.err)
        assert "Traceback" not in ran.err
    assert tenant.http.get("/tasks/999999999").status_code == 404
    for action in ("retry", "cancel"):
        assert tenant.http.post(f"/tasks/{task_id}:{action}").status_code == 409
    assert tenant.task(int(task_id))["state"] == "completed"


def test_lists_are_filtered_and_paged(product: Product, tenant: Tenant) -> None:
    made = [tenant.store(f"files/{number}", random_bytes(100))["id"] for number in range(3)]
    page = tenant.http.get("/tasks", params={"limit": 2}).json()
    assert [item["id"] for item in page["items"]] == made[:0:-1]
    rest = tenant.http.get("/tasks", params={"cursor": page["next_cursor"]}).json()
    assert [item["id"] for item in rest["items"]] == made[:1]

    table = product.blox("tasks", "list", "--tenant", tenant.name, "--limit", "2")
    head, first, second, more = table.out.splitlines()
    assert head.split()[:4] == ["id", "tenant_id", "kind", "state"]
    assert [line.split()[0] for line in (first, second)] == [str(made[2]), str(made[1])]
    assert more == f"more: --before {made[1]}"
    failed = product.blox("tasks", "list", "--tenant", tenant.name, "--state", "failed")
    assert (failed.code, failed.out) == (0, "no tasks\n")
    buckets = product.blox("buckets", "list", "--tenant", tenant.name, "-o", "json")
    assert [row["name"] for row in json.loads(buckets.out)] == ["files"]


def test_regions_are_drained_on_the_command_line(product: Product, tenant: Tenant) -> None:
    tenant.bucket("far", "main", region="eu")
    waiting = tenant.put("far/k", b"x")

    listed = product.blox("regions", "list", "-o", "json")
    assert "eu" in [row["region"] for row in json.loads(listed.out)]
    drained = product.blox("regions", "drain", "eu", "-o", "json")

    assert (drained.code, json.loads(drained.out)["moved"]) == (0, 1), drained.err
    assert tenant.ended(waiting["task_id"])["state"] == "completed"
    assert product.blox("regions", "drain", "eu", "--to", "eu").code != 0
    assert product.blox("regions", "reopen", "eu").code == 0
    # Nobody consumes that region here: for the tests that follow it is drained.
    assert product.blox("regions", "drain", "eu").code == 0
