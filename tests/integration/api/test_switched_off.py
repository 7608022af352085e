"""A service that is switched off: what would make its tasks or lean on it is a 501, reading is not.

One table over all of them, against one application on which everything was on before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.channels import ChannelInput, put_channel
from shared.catalog.models import BackupRun, BackupRunState
from shared.outbox.schema import tasks
from tests.integration.api.stack import BUCKET, CHANNEL, Stack
from tests.integration.api.test_reviews import waiting_review

pytestmark = pytest.mark.databases("sqlite")

#: Outside of every private network; nothing is ever sent there in these tests.
ADDRESS = "https://93.184.215.14/"
RULES: dict[str, Any] = {
    "backup": {"target": "vault"},
    "lifecycle": {"rules": [{"after_days": 1}]},
    "origin": {"rules": [{"sources": [{"url": ADDRESS, "headers": {"a": "b"}}]}]},
    "review_policy": {"on_change": "leave"},
    "replica_channels": ["second"],
}
OTHER_RULES: dict[str, Any] = {
    "backup": {"target": "vault", "keep_runs": 2},
    "lifecycle": {"rules": [{"after_days": 2}]},
    "origin": {"rules": [{"sources": [{"url": ADDRESS}], "prefix": "a/"}]},
    "review_policy": {"on_change": "leave", "reject_keywords": ["x"]},
    "replica_channels": ["second", "third"],
}
SERVICES = {
    "backup": "backup",
    "lifecycle": "delete",
    "origin": "origin",
    "review_policy": "review",
    "replica_channels": "replica",
}
OBJECTS = f"/buckets/{BUCKET}/objects"


class Request(NamedTuple):
    """One request, and the service without which it is a 501."""

    queue: str
    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = {}


def bucket(**rules: Any) -> dict[str, Any]:
    return {"channels": [CHANNEL], **rules}


class Ground:
    """What was there before: an object, a backup, a review that waits, a subscription."""

    def __init__(self, stack: Stack, client: httpx.Client) -> None:
        self.stack, self.client = stack, client
        for name in ("vault", "second", "third"):
            channel = ChannelInput(name=name, kind="file", settings={"root": f"/{name}"})
            with Session(stack.engine) as session, session.begin():
                put_channel(session, channel, secrets=stack.deps.secrets)
        self.put("ruled", **{**RULES, "review_policy": None})
        self.put("saved", backup=RULES["backup"])
        self.put("saved-too", backup=RULES["backup"])
        self.put("checked", review_policy=RULES["review_policy"])
        assert client.put(f"{OBJECTS}/k", content=b"x").status_code == 202
        self.review = waiting_review(stack)
        self.complete = client.post("/buckets/saved/backups").json()["id"]
        with Session(stack.engine) as session, session.begin():
            session.get_one(BackupRun, self.complete).state = BackupRunState.COMPLETE
        self.open = client.post("/buckets/saved-too/backups").json()["id"]
        order = {"mode": "content"}
        self.restore = client.post("/buckets/saved/restores", json=order).json()["id"]
        self.subscription = client.post(
            "/subscriptions", json={"url": ADDRESS, "events": ["object.stored"]}
        ).json()["id"]
        self.upload = client.post(
            "/uploads", json={"bucket": BUCKET, "key": "parts", "operation_id": "one"}
        ).json()["id"]
        self.reviewed_upload = client.post(
            "/uploads", json={"bucket": "checked", "key": "parts", "operation_id": "three"}
        ).json()["id"]

    def put(self, name: str, **rules: Any) -> None:
        assert self.client.put(f"/buckets/{name}", json=bucket(**rules)).status_code == 201

    def refused(self) -> Iterator[Request]:
        """Yield every request that must be refused while its service is off."""
        for rule, queue in SERVICES.items():
            yield Request(queue, "PUT", "/buckets/fresh", bucket(**{rule: RULES[rule]}))
            yield Request(queue, "PUT", f"/buckets/{BUCKET}", bucket(**{rule: RULES[rule]}))
            changed = {**RULES, "review_policy": None, rule: OTHER_RULES[rule]}
            yield Request(queue, "PUT", "/buckets/ruled", bucket(**changed))
        soon = {"expires_in_seconds": 60}
        upload = {"bucket": BUCKET, "key": "p", "operation_id": "two"}
        sub = f"/subscriptions/{self.subscription}"
        yield Request("upload", "PUT", f"{OBJECTS}/new", "bytes")
        yield Request("upload", "POST", "/uploads", upload)
        yield Request("upload", "PUT", f"/uploads/{self.upload}/parts/1", "bytes")
        yield Request("upload", "POST", f"/uploads/{self.upload}:complete", {"parts": []})
        yield Request("upload", "POST", f"/reviews/{self.review}:approve", {})
        yield Request("upload", "PUT", "/buckets/checked/objects/new", "bytes")
        yield Request("upload", "POST", "/buckets/ruled/origin-pulls", {"key": "far"})
        yield Request("upload", "POST", "/buckets/saved/restores", {"mode": "keys"})
        yield Request("review", "PUT", "/buckets/checked/objects/new", "bytes")
        yield Request("review", "POST", "/uploads", {**upload, "bucket": "checked"})
        reviewed = f"/uploads/{self.reviewed_upload}"
        yield Request("review", "PUT", f"{reviewed}/parts/1", "bytes")
        yield Request("review", "POST", f"{reviewed}:complete", {"parts": []})
        yield Request("review", "POST", "/buckets/checked:re-review", {})
        yield Request("review", "PUT", "/reviewers/outside", {"url": ADDRESS})
        yield Request("delete", "DELETE", f"{OBJECTS}/k")
        yield Request("delete", "POST", f"/buckets/{BUCKET}/removals", {"prefix": "a"})
        yield Request("delete", "POST", f"{OBJECTS}/k:expire", soon)
        yield Request("delete", "PUT", f"{OBJECTS}/t", "bytes", {"x-blox-expires-in": "60"})
        yield Request("delete", "POST", "/uploads", {**upload, **soon})
        yield Request("delete", "POST", f"{OBJECTS}/k:copy", {"key": "c", **soon})
        known = {"key": "i", "sha256": "a" * 64, "size": 1, **soon}
        yield Request("delete", "POST", f"/buckets/{BUCKET}/instant-uploads", known)
        yield Request("origin", "POST", "/buckets/ruled/origin-pulls", {"key": "far"})
        yield Request("backup", "POST", "/buckets/saved/backups", {})
        yield Request("backup", "DELETE", f"/buckets/saved/backups/{self.complete}")
        yield Request("restore", "POST", "/buckets/saved/restores", {"mode": "content"})
        new = {"url": ADDRESS, "events": ["object.stored"]}
        yield Request("notify", "POST", "/subscriptions", new)
        yield Request("notify", "POST", f"{sub}:test", {})
        yield Request("notify", "POST", f"{sub}:replay", {})
        yield Request("notify", "PATCH", sub, {"is_enabled": True})
        for queue, task_id in self._tasks().items():
            yield Request(queue, "POST", f"/tasks/{task_id}:retry", {})

    def allowed(self) -> Iterator[Request]:
        """Yield what is answered all the same; what is cancelled comes last."""
        sub = f"/subscriptions/{self.subscription}"
        for path in (
            "/buckets/ruled", f"{OBJECTS}/k", OBJECTS, f"/buckets/{BUCKET}/removals",
            "/buckets/saved/backups", f"/buckets/saved/backups/{self.complete}",
            f"/buckets/saved/backups/{self.complete}/items", "/buckets/saved/restores",
            f"/buckets/saved/restores/{self.restore}", "/reviews", f"/reviews/{self.review}",
            "/reviewers", "/losses", "/replicas", "/subscriptions", sub,
            f"/deliveries?subscription={self.subscription}", "/uploads",
        ):  # fmt: skip
            yield Request("", "GET", path)
        # Rules that were there before stay, others change, and any may go.
        kept = {**RULES, "review_policy": None}
        kept["origin"] = {"rules": [{"sources": [{"url": ADDRESS}]}]}
        yield Request("", "PUT", "/buckets/ruled", bucket(**kept, max_object_bytes=5))
        yield Request("", "PUT", "/buckets/ruled", bucket())
        yield Request("", "PATCH", sub, {"is_enabled": False})
        yield Request("", "POST", f"/reviews/{self.review}:reject", {})
        yield Request("", "POST", f"/buckets/saved-too/backups/{self.open}:cancel", {})
        yield Request("", "POST", f"/buckets/saved/restores/{self.restore}:cancel", {})
        yield Request("", "DELETE", f"/uploads/{self.upload}")
        yield Request("", "DELETE", sub)
        yield Request("", "DELETE", "/buckets/ruled")

    def _tasks(self) -> dict[str, int]:
        with self.stack.engine.connect() as connection:
            rows = connection.execute(
                sa.select(tasks.c.queue, sa.func.min(tasks.c.id)).group_by(tasks.c.queue)
            )
            return {row[0]: row[1] for row in rows}

    def ask(self, request: Request) -> httpx.Response:
        is_text = isinstance(request.body, str)
        return self.client.request(
            request.method,
            request.path,
            content=request.body.encode() if is_text else None,
            json=None if is_text else request.body,
            headers=request.headers,
        )

    def switch_off(self, *queues: str) -> None:
        off = replace(self.stack.deps.catalogue, switched_off=frozenset(queues))
        object.__setattr__(self.stack.deps, "catalogue", off)

    def rows(self) -> dict[str, int]:
        tables = (
            "tasks", "buckets", "versions", "backup_runs", "restores", "reviews",
            "webhook_reviewers", "origin_pulls", "removals", "subscriptions", "deliveries",
            "upload_sessions", "expiries",
        )  # fmt: skip
        return {table: self.stack.count(table) for table in tables}


def test_what_needs_a_service_that_is_off_is_a_501_and_the_rest_goes_on(stack: Stack) -> None:
    with stack.client() as client:
        ground = Ground(stack, client)
        before, wrong = ground.rows(), []
        refused = list(ground.refused())
        assert {request.queue for request in refused} == {
            "backup", "delete", "notify", "origin", "replica", "restore", "review", "upload",
        }  # fmt: skip
        for request in refused:
            ground.switch_off(request.queue)
            answer = ground.ask(request)
            problem = answer.json() if answer.content else {}
            sentence = f"the {request.queue} service is switched off in this deployment"
            if (answer.status_code, problem.get("code"), problem.get("detail")) != (
                501, "switched_off", sentence,
            ):  # fmt: skip
                wrong.append((request, answer.status_code, answer.text[:200]))
        assert wrong == []
        assert ground.rows() == before
        ground.switch_off(*{request.queue for request in refused})
        wrong = [
            (request, answer.status_code, answer.text[:200])
            for request in ground.allowed()
            if not (answer := ground.ask(request)).is_success
        ]
        assert wrong == []
