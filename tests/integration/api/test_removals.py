"""Deletion by prefix over HTTP."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.integration.api.stack import BUCKET, OTHER, Stack

pytestmark = pytest.mark.databases("sqlite")

OBJECTS, REMOVALS = f"/buckets/{BUCKET}/objects", f"/buckets/{BUCKET}/removals"


def test_asking_and_watching(stack: Stack) -> None:
    client = stack.client()
    for key in ("a/1", "a/2", "b"):
        client.put(f"{OBJECTS}/{key}", content=key.encode())
    headers = {"idempotency-key": "one"}
    answer = client.post(REMOVALS, json={"prefix": "a/"}, headers=headers)
    assert answer.status_code == 202
    made = answer.json()
    assert (made["state"], made["prefix"], made["deleted_keys"]) == ("running", "a/", 0)
    assert client.post(REMOVALS, json={"prefix": "a/"}, headers=headers).json() == made
    assert stack.count("removals") == 1
    task = client.get(f"/tasks/{made['task_id']}").json()
    assert (task["kind"], task["queue"]) == ("delete.prefix", "delete")
    address = f"{REMOVALS}/{made['id']}"
    assert client.get(address).json() == made
    assert client.get(REMOVALS).json()["items"] == [made]
    assert stack.client(tenant=OTHER).get(address).status_code == 404
    assert stack.client("objects:read").post(REMOVALS, json={"prefix": ""}).status_code == 403

    assert client.post(f"/tasks/{made['task_id']}:cancel").json()["state"] == "cancelled"
    assert client.get(address).json()["state"] == "cancelled"


@pytest.mark.parametrize("order", [{}, {"prefix": None}, {"prefix": "x" * 1025}, {"prefix": 7}])
def test_bad_orders(stack: Stack, order: dict[str, object]) -> None:
    assert stack.client().post(REMOVALS, json=order).status_code == 422
    assert stack.count("removals") == 0


def test_prefix_of_too_many_bytes_or_broken_text(stack: Stack) -> None:
    client = stack.client()
    for prefix in ("\N{EURO SIGN}" * 400, "\ud800"):
        body = f'{{"prefix": "{prefix}"}}'.encode("utf-8", "surrogatepass")
        answer = client.post(REMOVALS, content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422)
    answer = client.post(REMOVALS, content=b'{"prefix": "\\ud800"}')
    assert answer.status_code in (400, 422)
    assert stack.count("removals") == 0


def test_deployment_without_deletions_says_so(stack: Stack) -> None:
    off = replace(stack.deps.catalogue, switched_off=frozenset({"delete"}))
    object.__setattr__(stack.deps, "catalogue", off)
    answer = stack.client().post(REMOVALS, json={"prefix": ""})
    assert (answer.status_code, answer.json()["code"]) == (501, "switched_off")
    assert stack.count("removals") == stack.count("tasks") == 0
