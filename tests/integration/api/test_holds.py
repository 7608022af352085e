"""Holds over HTTP, and what a deployment without deletions answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.integration.api.stack import BUCKET, OTHER, Stack
from tests.integration.api.working import uploading_worker
from tests.support.eventually import eventually

OBJECTS = f"/buckets/{BUCKET}/objects"
HOLDS = f"/buckets/{BUCKET}/holds"

pytestmark = pytest.mark.databases("sqlite")


def test_holding_and_releasing(stack: Stack, redis_url: str, namespace: str) -> None:
    client = stack.client()
    client.put(f"{OBJECTS}/k", content=b"hello")
    early = client.post(HOLDS, json={"key": "k", "reason": "a lawsuit"})
    assert (early.status_code, early.json()["code"]) == (409, "content_not_stored")
    assert int(early.headers["retry-after"]) >= 1
    with uploading_worker(stack, redis_url, namespace):
        eventually(lambda: client.head(f"{OBJECTS}/k").headers["x-blox-state"] == "stored")
    order = {"key": "k", "reason": "a lawsuit", "until": "2999-01-01T00:00:00+02:00"}
    headers = {"idempotency-key": "one"}
    answer = client.post(HOLDS, json=order, headers=headers)
    assert answer.status_code == 201
    held = answer.json()
    assert (held["state"], held["bucket"], held["key"], held["size"]) == ("active", BUCKET, "k", 5)
    assert held["until"] == "2998-12-31T22:00:00.000000Z"
    assert client.post(HOLDS, json=order, headers=headers).json() == held

    refused = client.delete(f"{OBJECTS}/k")
    assert (refused.status_code, refused.json()["code"]) == (409, "object_held")
    assert client.get("/holds").json()["items"] == [held]
    assert client.get("/holds", params={"state": "released"}).json()["items"] == []
    address = f"/holds/{held['id']}"
    assert stack.client(tenant=OTHER).get(address).status_code == 404
    assert stack.client(tenant=OTHER).delete(address).status_code == 404
    assert stack.client("holds:read").delete(address).status_code == 403
    assert stack.client("objects:write").post(HOLDS, json=order).status_code == 403
    assert client.delete(address).json()["state"] == "released"
    assert client.delete(address).json()["ended_by"] == "acme/test"
    assert client.delete(f"{OBJECTS}/k").status_code == 204


@pytest.mark.parametrize(
    "order",
    [
        {"key": "k"},
        {"key": "k", "reason": ""},
        {"key": "k", "reason": "r", "until": "yesterday"},
        {"key": "../k", "reason": "r"},
    ],
)
def test_bad_orders(stack: Stack, order: dict[str, str]) -> None:
    answer = stack.client().post(HOLDS, json=order)
    assert answer.status_code in (400, 422)
    assert stack.count("holds") == 0


def test_deployment_without_deletions_says_so(stack: Stack) -> None:
    client = stack.client()
    client.put(f"{OBJECTS}/k", content=b"hello")
    before = stack.count("tasks")
    off = replace(stack.deps.catalogue, switched_off=frozenset({"delete"}))
    object.__setattr__(stack.deps, "catalogue", off)
    answer = client.delete(f"{OBJECTS}/k")
    assert (answer.status_code, answer.json()["code"]) == (501, "switched_off")
    assert "delete service" in answer.json()["detail"]
    assert stack.count("tasks") == before
    assert client.get(f"{OBJECTS}/k").status_code == 200
