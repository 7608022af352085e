"""Copies on other channels over HTTP: rules, what waits, and a deployment without the service."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from shared.catalog.channels import ChannelInput, put_channel
from tests.integration.api.stack import BUCKET, CHANNEL, OTHER, Stack
from tests.integration.api.working import uploading_worker
from tests.support.eventually import eventually

pytestmark = pytest.mark.databases("sqlite")

ADDRESS = f"/buckets/{BUCKET}"
RULED = {"channels": [CHANNEL], "replica_channels": ["disk-2"]}


@pytest.fixture
def second(stack: Stack, tmp_path: Path) -> Stack:
    """The stack with a channel beside the first."""
    made = ChannelInput(name="disk-2", kind="file", settings={"root": str(tmp_path / "disk-2")})
    with Session(stack.engine) as session, session.begin():
        put_channel(session, made, secrets=stack.deps.secrets)
    return stack


def test_rules_and_what_waits(second: Stack, redis_url: str, namespace: str) -> None:
    client = second.client()
    assert client.get(ADDRESS).json()["replica_channels"] == []
    answer = client.put(ADDRESS, json=RULED)
    assert (answer.status_code, answer.json()["replica_channels"]) == (200, ["disk-2"])
    assert client.get(f"{ADDRESS}/replicas").json()["items"][0]["missing"] is None
    client.put(f"{ADDRESS}/objects/k", content=b"hello")
    with uploading_worker(second, redis_url, namespace):
        eventually(lambda: bool(client.get("/replicas").json()["items"]))
    (waiting,) = client.get("/replicas").json()["items"]
    assert (waiting["state"], waiting["channel"], waiting["size"]) == ("pending", "disk-2", 5)
    assert waiting["attempts"] == 0
    assert waiting["next_try_at"] is not None
    (rule,) = client.get(f"{ADDRESS}/replicas").json()["items"]
    assert (rule["channel"], rule["state"], rule["pending"]) == ("disk-2", "active", 1)
    assert rule["oldest_pending_at"] == waiting["pending_since"]
    for filters in ({"state": "failed"}, {"channel": "disk-1"}, {"cursor": waiting["id"]}):
        assert client.get("/replicas", params=filters).json()["items"] == []
    stranger = second.client(tenant=OTHER)
    assert stranger.get("/replicas").json()["items"] == []
    assert stranger.get("/buckets/nothing/replicas").status_code == 404
    assert second.client("objects:read").get("/replicas").status_code == 403
    assert second.client().get("/channel-audits").status_code == 403
    assert second.client("admin").get("/channel-audits").json() == {"items": []}


@pytest.mark.parametrize(
    ("channels", "code"),
    [(["nowhere"], "channel_unknown"), (["disk-2", "disk-2"], "channels_repeated"), ([""], None)],
)
def test_rules_that_cannot_be(second: Stack, channels: list[str], code: str | None) -> None:
    client = second.client()
    answer = client.put(ADDRESS, json={"channels": [CHANNEL], "replica_channels": channels})
    assert answer.status_code in (400, 422)
    assert code is None or answer.json()["code"] == code
    assert client.get(ADDRESS).json()["replica_channels"] == []


def test_a_channel_of_a_rule_stays(second: Stack) -> None:
    second.client().put(ADDRESS, json=RULED)
    answer = second.client("admin").delete("/channels/disk-2")
    assert (answer.status_code, answer.json()["code"]) == (409, "channel_in_use")


def test_without_the_service_a_new_rule_is_refused_and_an_old_one_stays(second: Stack) -> None:
    client = second.client()
    client.put(ADDRESS, json=RULED)
    off = replace(second.deps.catalogue, switched_off=frozenset({"replica"}))
    object.__setattr__(second.deps, "catalogue", off)
    answer = client.put("/buckets/other", json=RULED)
    assert (answer.status_code, answer.json()["code"]) == (501, "switched_off")
    assert "replica" in answer.json()["detail"]
    assert client.put(ADDRESS, json={**RULED, "max_object_bytes": 10}).status_code == 200
    assert client.put(ADDRESS, json={"channels": [CHANNEL]}).status_code == 200
