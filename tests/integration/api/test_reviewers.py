"""Reviewers over HTTP: registering them, policies that name them, and their callbacks."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import ReviewStep, utc_clock, utc_now
from shared.catalog.review_content import content_path
from shared.core.webhooks import make_secret, sign
from tests.integration.api.stack import CHANNEL, OTHER, Stack, running_stack

pytestmark = pytest.mark.databases("sqlite")

URL = "http://127.0.0.1:9/ask"
POLICY = {"reviewers": [{"kind": "webhook", "name": "far", "reviewer": "elsewhere"}]}


def register(client: httpx.Client, **order: Any) -> httpx.Response:
    return client.put("/reviewers/elsewhere", json={"url": URL, **order})


def put_bucket(client: httpx.Client, policy: dict[str, Any]) -> httpx.Response:
    return client.put("/buckets/asked", json={"channels": [CHANNEL], "review_policy": policy})


def test_reviewer_is_registered_changed_and_removed(stack: Stack) -> None:
    with stack.client() as client:
        made = register(client)
        assert made.status_code == 201
        secret = made.json()["secret"]
        assert secret.startswith("whsec_")
        again = register(client, status_url="http://127.0.0.1:9/steps/{step_id}")
        assert (again.status_code, again.json()["secret"]) == (200, None)
        [listed] = client.get("/reviewers").json()["items"]
        assert listed == client.get("/reviewers/elsewhere").json()
        assert secret not in json.dumps(listed)
        assert put_bucket(client, POLICY).status_code == 201
        kept = client.delete("/reviewers/elsewhere")
        assert (kept.status_code, kept.json()["code"]) == (409, "reviewer_in_use")
        assert put_bucket(client, {}).status_code == 200
        assert client.delete("/reviewers/elsewhere").status_code == 204
        assert client.get("/reviewers/elsewhere").status_code == 404


@pytest.mark.parametrize(
    ("order", "code"),
    [
        ({"url": "http://10.0.0.1/ask"}, "address_forbidden"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, "address_forbidden"),
        ({"url": "http://[::ffff:10.0.0.1]/ask"}, "address_forbidden"),
        ({"url": "ftp://example.com/ask"}, "url_invalid"),
        ({"url": "http://user:word@example.com/ask"}, "url_invalid"),
        ({"status_url": "http://10.0.0.1/{step_id}"}, "address_forbidden"),
        ({"status_url": "http://127.0.0.1:9/steps"}, "status_url_invalid"),
        ({"secrets": ["whsec_short"]}, "webhook_secret_invalid"),
        ({"secrets": []}, "webhook_secret_invalid"),
    ],
)
def test_reviewer_that_cannot_be_right_is_refused(
    stack: Stack, order: dict[str, Any], code: str
) -> None:
    with stack.client() as client:
        refused = register(client, **order)
        assert (refused.status_code, refused.json()["code"]) == (400, code), refused.text
        assert client.get("/reviewers").json()["items"] == []


def test_another_tenants_reviewer_is_not_there(stack: Stack) -> None:
    with stack.client() as client, stack.client(tenant=OTHER) as theirs:
        register(client)
        assert theirs.get("/reviewers").json()["items"] == []
        assert theirs.delete("/reviewers/elsewhere").status_code == 404
        refused = put_bucket(theirs, POLICY)
        assert (refused.status_code, refused.json()["code"]) == (400, "reviewer_unknown")
    with stack.client("reviews:read") as reader:
        assert register(reader, url="http://10.0.0.1/").status_code == 403


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"kind": "clamav", "name": "virus"}, "BLOX_REVIEW__CLAMD"),
        ({"kind": "yara", "name": "rules", "rules": "rule a { condition: true }"}, "yara-python"),
        ({"kind": "image", "name": "picture"}, "pillow"),
    ],
)
def test_policy_that_names_an_absent_reviewer_is_refused(
    stack: Stack, spec: dict[str, Any], says: str
) -> None:
    with stack.client() as client:
        refused = put_bucket(client, {"reviewers": [spec]})
        assert (refused.status_code, refused.json()["code"]) == (400, "reviewer_absent")
        assert says in refused.json()["detail"]
        assert client.get("/buckets/asked").status_code == 404


class Waiting:
    """A step that waits, as the review worker leaves it, and its reviewer's callbacks."""

    def __init__(self, stack: Stack, client: httpx.Client) -> None:
        self.stack, self.client, self.secret = stack, client, make_secret()
        assert register(client, secrets=[self.secret]).status_code == 201
        assert put_bucket(client, POLICY).status_code == 201
        put = client.put("/buckets/asked/objects/k", content=b"to be looked at")
        assert put.status_code == 202, put.text
        self.task_id = put.json()["task_id"]
        [review] = client.get("/reviews").json()["items"]
        self.review_id = review["id"]
        with Session(stack.engine, expire_on_commit=False) as session, session.begin():
            step = ReviewStep(
                review_id=review["id"],
                step="far",
                kind="webhook",
                outcome="waiting",
                ask_id="ask-1",
                asked_at=utc_clock(),
                deadline_at=utc_now(600),
                created_at=utc_clock(),
            )
            session.add(step)
            session.flush()
            self.step_id = step.id
            session.execute(
                sa.text("UPDATE tasks SET state = 'scheduled', due_at = :due WHERE id = :id"),
                {"due": "2999-01-01 00:00:00.000000", "id": self.task_id},
            )

    def call(
        self,
        document: dict[str, Any],
        *,
        message_id: str = "m1",
        step: object = None,
        age_seconds: float = 0.0,
        **headers: str,
    ) -> httpx.Response:
        body = json.dumps({"step_id": self.step_id} | document).encode()
        stamp = int(time.time() - age_seconds)
        signed = sign([self.secret], message_id=message_id, timestamp=stamp, body=body)
        return httpx.post(
            f"{self.stack.address.url}/v1/review-callbacks/{step or self.step_id}",
            content=body,
            headers={**signed, **headers},
        )

    def outcome(self) -> str:
        with Session(self.stack.engine) as session:
            return session.get_one(ReviewStep, self.step_id).outcome

    def task(self) -> str:
        state: str = self.client.get(f"/tasks/{self.task_id}").json()["state"]
        return state


@pytest.mark.databases("sqlite", "mariadb")
def test_callback_is_heard_once(stack: Stack) -> None:
    with stack.client() as client:
        waiting = Waiting(stack, client)
        assert waiting.task() == "scheduled"
        heard = waiting.call({"outcome": "pass", "reason": "fine"})
        assert heard.status_code == 200, heard.text
        assert heard.json() == {"step_id": waiting.step_id, "outcome": "pass"}
        assert waiting.task() != "scheduled"
        again = waiting.call({"outcome": "pass", "reason": "fine"})
        assert (again.status_code, again.json()) == (200, heard.json())
        other = waiting.call({"outcome": "reject"}, message_id="m2")
        assert (other.status_code, other.json()["code"]) == (409, "review_step_answered")
        assert waiting.outcome() == "pass"
        [step] = client.get(f"/reviews/{waiting.review_id}").json()["steps"]
        assert (step["step"], step["outcome"], step["detail"]) == ("far", "pass", "fine")


def test_bad_callbacks_change_nothing_and_are_told_so(stack: Stack) -> None:
    with stack.client() as client:
        waiting = Waiting(stack, client)
        good = {"outcome": "pass"}
        answers = [
            waiting.call(good, step=waiting.step_id + 1000),
            waiting.call(good, **{"webhook-signature": "v1,AAAA"}),
            waiting.call(good, **{"webhook-id": "other"}),
            waiting.call(good, age_seconds=400),
            waiting.call({"outcome": "perhaps"}),
            waiting.call({**good, "step_id": None}),
            waiting.call({**good, "step_id": waiting.step_id + 1}),
            waiting.call({"outcome": "pass", "reason": "x" * 70_000}),
        ]
        assert [(one.status_code, one.json()["code"]) for one in answers] == [
            (404, "review_step_not_found"),
            (401, "webhook_signature_invalid"),
            (401, "webhook_signature_invalid"),
            (401, "webhook_timestamp_old"),
            (400, "review_answer_invalid"),
            (400, "review_answer_invalid"),
            (400, "review_step_mismatch"),
            (400, "review_answer_invalid"),
        ]
        assert waiting.outcome() == "waiting"
        assert waiting.task() == "scheduled"
        bare = httpx.post(f"{stack.address.url}/v1/review-callbacks/{waiting.step_id}", json=good)
        assert bare.status_code == 401
        client.delete("/buckets/asked/objects/k")
        late = waiting.call(good)
        assert (late.status_code, late.json()["code"]) == (409, "review_over")
        assert waiting.outcome() == "waiting"


def test_without_the_service_a_reviewed_bucket_takes_nothing(
    blox_url: str, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    switched_off = frozenset({"review"})
    with (
        running_stack(blox_url, redis_url, namespace, tmp_path, switched_off=switched_off) as stack,
        stack.client() as client,
    ):
        stack.make_reviewed_bucket("checked")
        refused = client.put("/buckets/checked/objects/k", content=b"x")
        assert (refused.status_code, refused.json()["code"]) == (501, "switched_off")
        assert "review" in refused.json()["detail"]
        assert stack.is_untouched()


def test_content_is_read_by_the_reviewer_alone_and_only_while_it_is_asked(stack: Stack) -> None:
    with stack.client() as client:
        waiting = Waiting(stack, client)
        step, now = waiting.step_id, int(time.time())

        def read(path: str) -> httpx.Response:
            return httpx.get(f"{stack.address.url}{path}")

        good = content_path(stack.deps.secrets, step, expires_at=now + 60)
        shown = read(good)
        assert (shown.status_code, shown.content) == (200, b"to be looked at")
        assert shown.headers["cache-control"] == "no-store"
        assert client.get("/buckets/asked/objects/k").status_code == 404
        refused = [
            read(good.replace(f"/{step}?", f"/{step + 1}?")),
            read(good.replace(str(now + 60), str(now + 90))),
            read(content_path(stack.deps.secrets, step, expires_at=now - 1)),
        ]
        assert [(one.status_code, one.json()["code"]) for one in refused] == [
            (403, "link_signature"),
            (403, "link_signature"),
            (403, "link_expired"),
        ]
        waiting.call({"outcome": "reject"})
        late = read(good)
        assert (late.status_code, late.json()["code"]) == (409, "review_over")
