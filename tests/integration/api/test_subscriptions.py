"""Subscriptions and deliveries over HTTP: made, shown without secrets, switched, replayed."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from shared.catalog.models import Delivery
from shared.catalog.notifying.subscriptions import replay
from shared.outbox.schema import tasks
from tests.integration.api.stack import BUCKET, OTHER, Stack

pytestmark = pytest.mark.databases("sqlite")

#: Outside of every private network; nothing is ever sent there in these tests.
URL = "https://93.184.215.14/hook"
ORDER: dict[str, Any] = {"url": URL, "events": ["object.stored", "object.deleted"]}


def test_a_subscription_from_its_first_to_its_last_day(stack: Stack) -> None:
    client = stack.client()
    answer = client.post("/subscriptions", json={**ORDER, "bucket": BUCKET, "prefix": "a/"})
    assert answer.status_code == 201, answer.text
    made = answer.json()
    secret = made.pop("secret")
    assert secret.startswith("whsec_")
    address = f"/subscriptions/{made['id']}"
    assert client.get(address).json() == made
    assert client.get("/subscriptions").json()["items"] == [made]
    assert secret not in client.get("/subscriptions").text

    off = client.patch(address, json={"is_enabled": False}).json()
    assert (off["is_enabled"], off["disabled_code"]) == (False, "by_hand")
    assert client.patch(address, json={"is_enabled": True}).json()["disabled_code"] is None
    assert client.post(f"{address}:rotate-secret").json()["secret"] not in ("", secret)
    assert client.post(f"{address}:drop-old-secrets").status_code == 204
    assert client.delete(address).status_code == 204
    assert client.get(address).status_code == 404


def test_events_and_what_was_sent_are_listed_and_sent_again(stack: Stack) -> None:
    client = stack.client()
    own = client.post("/subscriptions", json=ORDER).json()["id"]
    tested = client.post(f"/subscriptions/{own}:test", headers={"idempotency-key": "once"})
    assert tested.status_code == 202
    again = client.post(f"/subscriptions/{own}:test", headers={"idempotency-key": "once"})
    assert again.json() == tested.json()
    client.put(f"/buckets/{BUCKET}/objects/k", content=b"x")
    assert client.delete(f"/buckets/{BUCKET}/objects/k").status_code == 204

    listed = client.get("/deliveries", params={"subscription": own}).json()["items"]

    assert [one["type"] for one in listed] == ["object.deleted", "subscription.test"]
    assert listed[0]["data"]["key"] == "k"
    assert "bucket_id" not in listed[0]["data"]
    waiting = client.post(f"/deliveries/{listed[0]['id']}:replay")
    assert waiting.status_code == 409
    client.post(f"/tasks/{listed[0]['task_id']}:cancel")
    (given_up,) = client.get("/deliveries", params={"subscription": own, "state": "failed"}).json()[
        "items"
    ]
    assert given_up["id"] == listed[0]["id"]
    assert client.post(f"/subscriptions/{own}:replay", json={}).json()["begun"] == 1
    second = client.post("/subscriptions", json=ORDER).json()["id"]
    replayed = client.post(f"/subscriptions/{second}:replay")
    assert replayed.json() == {"begun": 1, "next_after": None}
    assert stack.count(Delivery.__tablename__) == 3


@pytest.mark.parametrize(
    "order",
    [
        {**ORDER, "url": "http://10.0.0.1/hook"},
        {**ORDER, "url": "http://169.254.169.254/latest"},
        {**ORDER, "url": "ftp://93.184.215.14/"},
        {**ORDER, "url": "https://user:word@93.184.215.14/"},
        {**ORDER, "events": []},
        {**ORDER, "events": ["object.exploded"]},
        {**ORDER, "bucket": "nowhere"},
        {**ORDER, "colour": "red"},
        {**ORDER, "prefix": "é" * 513},
    ],
)
def test_bad_orders_make_nothing(stack: Stack, order: dict[str, Any]) -> None:
    answer = stack.client().post("/subscriptions", json=order)
    assert answer.status_code in (400, 404, 422), answer.text
    assert stack.count("subscriptions") == 0


def test_a_tenants_subscriptions_are_its_own(stack: Stack) -> None:
    client = stack.client()
    own = client.post("/subscriptions", json=ORDER).json()["id"]
    other = stack.client(tenant=OTHER)
    assert other.get(f"/subscriptions/{own}").status_code == 404
    assert other.delete(f"/subscriptions/{own}").status_code == 404
    assert other.get("/deliveries", params={"subscription": own}).status_code == 404
    delivery = client.post(f"/subscriptions/{own}:test").json()["id"]
    assert other.post(f"/deliveries/{delivery}:replay").status_code == 404
    reader = stack.client("notifications:read")
    assert reader.get(f"/subscriptions/{own}").status_code == 200
    assert reader.post("/subscriptions", json=ORDER).status_code == 403


def test_a_subscription_that_is_off_is_sent_nothing_by_hand(stack: Stack) -> None:
    client = stack.client()
    own = client.post("/subscriptions", json=ORDER).json()["id"]
    tested = client.post(f"/subscriptions/{own}:test").json()
    client.post(f"/tasks/{tested['task_id']}:cancel")
    client.patch(f"/subscriptions/{own}", json={"is_enabled": False})
    for address in (
        f"/subscriptions/{own}:test",
        f"/subscriptions/{own}:replay",
        f"/deliveries/{tested['id']}:replay",
        f"/tasks/{tested['task_id']}:retry",
    ):
        answer = client.post(address)
        assert (answer.status_code, answer.json()["code"]) == (409, "subscription_off")
    assert stack.count(Delivery.__tablename__) == 1


def test_switched_on_again_what_waits_for_it_is_due_at_once(stack: Stack) -> None:
    client = stack.client()
    own = client.post("/subscriptions", json=ORDER).json()["id"]
    waits = [client.post(f"/subscriptions/{own}:test").json()["task_id"] for _ in range(3)]
    later = dt.datetime(2100, 1, 1)
    with stack.engine.begin() as connection:
        connection.execute(sa.update(tasks).values(state="scheduled", due_at=later))

    assert client.patch(f"/subscriptions/{own}", json={"is_enabled": True}).status_code == 200

    found = [client.get(f"/tasks/{task_id}").json() for task_id in waits]
    assert {one["state"] for one in found} == {"pending"}
    assert {one["due_at"] < "2099" for one in found} == {True}


def test_what_was_sent_long_ago_is_sent_again_without_its_old_task(stack: Stack) -> None:
    client = stack.client()
    own = client.post("/subscriptions", json=ORDER).json()["id"]
    for key in ("a", "b"):
        client.put(f"/buckets/{BUCKET}/objects/{key}", content=b"x")
        client.delete(f"/buckets/{BUCKET}/objects/{key}")
    listed = client.get("/deliveries", params={"subscription": own}).json()["items"]
    old = [one["task_id"] for one in listed]
    for task_id in old:
        client.post(f"/tasks/{task_id}:cancel")
    with stack.deps.database.engine.begin() as connection:
        connection.execute(sa.delete(tasks).where(tasks.c.id.in_(old)))

    one = client.post(f"/deliveries/{listed[0]['id']}:replay")
    rest = client.post(f"/subscriptions/{own}:replay")

    assert (one.status_code, one.json()["state"]) == (202, "pending")
    assert rest.json()["begun"] == 1, "the other one waits already"
    now = client.get("/deliveries", params={"subscription": own}).json()["items"]
    assert [each["state"] for each in now] == ["pending"] * 2
    assert not {each["task_id"] for each in now} & set(old)


def test_a_replay_says_where_the_next_one_goes_on(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.api.routes.subscriptions.replay", partial(replay, limit=2))
    client = stack.client()
    client.post("/subscriptions", json=ORDER)
    for key in ("a", "b", "c"):
        client.put(f"/buckets/{BUCKET}/objects/{key}", content=b"x")
        client.delete(f"/buckets/{BUCKET}/objects/{key}")
    late = client.post("/subscriptions", json=ORDER).json()["id"]
    first = client.post(f"/subscriptions/{late}:replay").json()
    assert (first["begun"], first["next_after"] is None) == (2, False)
    then = client.post(f"/subscriptions/{late}:replay", json={"after": first["next_after"]})
    assert then.json() == {"begun": 1, "next_after": None}


def test_a_subscription_says_that_its_bucket_is_gone(stack: Stack) -> None:
    client = stack.client()
    client.put("/buckets/brief", json={"channels": ["disk-1"]})
    made = client.post("/subscriptions", json={**ORDER, "bucket": "brief"}).json()
    assert made["is_bucket_gone"] is False
    assert client.delete("/buckets/brief").status_code == 204
    client.put("/buckets/brief", json={"channels": ["disk-1"]})
    shown = client.get(f"/subscriptions/{made['id']}").json()
    assert (shown["bucket"], shown["is_bucket_gone"]) == (None, True)


def test_switched_off_nobody_subscribes(stack: Stack) -> None:
    catalogue = replace(stack.deps.catalogue, switched_off=frozenset({"notify"}))
    object.__setattr__(stack.deps, "catalogue", catalogue)
    answer = stack.client().post("/subscriptions", json=ORDER)
    assert (answer.status_code, answer.json()["code"]) == (501, "switched_off")
