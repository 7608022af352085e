"""Expiry over HTTP: said with a write, shown by reads and lists, changed afterwards, by rule."""

from __future__ import annotations

import pytest

from tests.integration.api.stack import BUCKET, CHANNEL, Stack

pytestmark = pytest.mark.databases("sqlite")

OBJECTS = f"/buckets/{BUCKET}/objects"
AT, IN = "x-blox-expires-at", "x-blox-expires-in"


def test_saying_seeing_and_changing(stack: Stack) -> None:
    client = stack.client()
    at = "2040-01-01T00:00:00Z"
    assert client.put(f"{OBJECTS}/k", content=b"x", headers={AT: at}).status_code == 202
    assert client.head(f"{OBJECTS}/k").headers[AT] == at
    assert client.get(f"{OBJECTS}/k").headers[AT] == at
    (item,) = client.get(OBJECTS).json()["items"]
    assert item["expires_at"] == "2040-01-01T00:00:00.000000Z"
    etag = item["etag"]

    answer = client.post(f"{OBJECTS}/k:expire", json={}, headers={"if-match": etag})
    assert (answer.status_code, answer.json()["expires_at"]) == (200, None)
    assert AT not in client.head(f"{OBJECTS}/k").headers
    answer = client.post(f"{OBJECTS}/k:expire", json={"expires_in_seconds": 60})
    assert answer.json()["expires_at"] == client.get(OBJECTS).json()["items"][0]["expires_at"]
    client.put(f"{OBJECTS}/k", content=b"newer")
    assert AT not in client.head(f"{OBJECTS}/k").headers


@pytest.mark.parametrize(
    "headers",
    [{AT: "2020-01-01T00:00:00Z"}, {AT: "x"}, {IN: "0"}, {IN: "1e300"}, {IN: "1", AT: "x"}],
)
def test_what_cannot_be_meant_stores_nothing(stack: Stack, headers: dict[str, str]) -> None:
    answer = stack.client().put(f"{OBJECTS}/k", content=b"x", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "expiry_invalid")
    assert stack.is_untouched()


def test_bad_orders(stack: Stack) -> None:
    client = stack.client()
    client.put(f"{OBJECTS}/k", content=b"x")
    address = f"{OBJECTS}/k:expire"
    for order, status in (
        ({"expires_at": "2020-01-01T00:00:00Z"}, 400),
        ({"expires_at": "2040-01-01T00:00:00Z", "expires_in_seconds": 1}, 400),
        ({"expires_in_seconds": -1}, 422),
        ({"expires_at": "x"}, 422),
    ):
        assert client.post(address, json=order).status_code == status
    assert client.post(f"{OBJECTS}/never:expire", json={}).status_code == 404
    assert client.post(address, json={}, headers={"if-match": '"x"'}).status_code == 412
    assert stack.client("objects:read").post(address, json={}).status_code == 403
    assert stack.count("expiries") == 0


def test_rules_of_a_bucket(stack: Stack) -> None:
    client = stack.client()
    rule = {"prefix": "logs/", "after_days": 7, "after_seconds": None}
    spec = {"channels": [CHANNEL], "lifecycle": {"rules": [rule]}}
    put = client.put(f"/buckets/{BUCKET}", json=spec)
    assert put.json()["lifecycle"] == {"rules": [rule]}
    client.put(f"{OBJECTS}/logs/a", content=b"x")
    client.put(f"{OBJECTS}/other", content=b"x")
    assert AT in client.head(f"{OBJECTS}/logs/a").headers
    items = client.get(OBJECTS).json()["items"]
    assert [item["expires_at"] is None for item in items] == [False, True]
    assert client.get(f"/buckets/{BUCKET}").json() == put.json()
    for bad in ({"rules": [{}]}, {"rules": [{"after_days": 0}]}, {"rule": []}):
        spec["lifecycle"] = bad
        assert client.put(f"/buckets/{BUCKET}", json=spec).status_code == 422
    assert client.put(f"/buckets/{BUCKET}", json={"channels": [CHANNEL]}).is_success
    assert AT not in client.head(f"{OBJECTS}/logs/a").headers
