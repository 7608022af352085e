"""Queues with their consumers, and draining a region, over HTTP."""

from __future__ import annotations

import pytest

from shared.outbox.nodes import NodeWriter
from tests.integration.api.stack import Stack

pytestmark = pytest.mark.databases("sqlite")


def test_queues_tell_who_consumes_them_where(stack: Stack) -> None:
    admin = stack.client("admin")
    stack.make_bucket("far", region="eu")
    assert admin.put("/buckets/far/objects/k", content=b"x").status_code == 202
    writer = NodeWriter(stack.deps.outbox.context)
    writer.write(role="worker", queues=["upload", "upload.us"], threads=3, threads_busy=1)

    found = {(one["queue"], one["region"]): one for one in admin.get("/queues").json()["items"]}

    assert found["upload", "eu"]["consumers"] == []
    assert sum(found["upload", "eu"]["tasks"].values()) == 1
    (consumer,) = found["upload", "us"]["consumers"]
    assert (consumer["threads"], consumer["threads_busy"]) == (3, 1)
    assert stack.client().get("/queues").status_code == 403


def test_draining_and_opening_again(stack: Stack) -> None:
    admin = stack.client("admin")
    stack.make_bucket("far", region="eu")
    for key in "ab":
        assert admin.put(f"/buckets/far/objects/{key}", content=b"x").status_code == 202

    refused = admin.post("/regions/eu:drain")
    assert (refused.status_code, refused.json()["code"]) == (409, "region_unconsumed")
    assert "nobody consumes anything in the base queues" in refused.json()["detail"]
    assert admin.get("/regions").json()["items"][0]["drained_to"] is None

    answer = admin.post("/regions/eu:drain", json={"force": True})

    assert answer.status_code == 200
    assert answer.json() == {"moved": 2, "waiting": 0, "running": 0, "is_over": True}
    assert admin.get("/regions").json()["items"] == [{"name": "eu", "buckets": 1, "drained_to": ""}]
    task_id = admin.put("/buckets/far/objects/c", content=b"x").json()["task_id"]
    assert admin.get(f"/tasks/{task_id}").json()["region"] == ""
    assert admin.post("/regions/eu:reopen").status_code == 204
    task_id = admin.put("/buckets/far/objects/d", content=b"x").json()["task_id"]
    assert admin.get(f"/tasks/{task_id}").json()["region"] == "eu"


@pytest.mark.parametrize("order", [{"to": "eu"}, {"to": "E U"}, {"too": "us"}])
def test_bad_orders(stack: Stack, order: dict[str, str]) -> None:
    admin = stack.client("admin")
    assert admin.post("/regions/eu:drain", json=order).status_code in (400, 422)
    assert admin.post("/regions/Eu:drain").status_code == 422
    assert stack.client().post("/regions/eu:drain").status_code == 403
    assert admin.get("/regions").json()["items"] == []


def test_the_limit_of_waiting_tasks_counts_where_a_drained_regions_work_goes(
    tight_stack: Stack,
) -> None:
    admin = tight_stack.client("admin")
    tight_stack.make_bucket("far", region="eu")
    assert admin.post("/regions/eu:drain", json={"to": "us", "force": True}).status_code == 200
    # The stack takes three; each is counted where it waits, not where its bucket would have it.
    answers = [admin.put(f"/buckets/far/objects/{n}", content=b"%d" % n) for n in range(4)]
    assert [one.status_code for one in answers] == [202, 202, 202, 429]
    assert answers[-1].json()["code"] == "backlog_full"
