"""A reviewer elsewhere, asked by the running product and heard over its API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.acceptance.product import PATIENCE, Tenant
from tests.support.eventually import eventually
from tests.support.reviewer import Reviewer, running_reviewer, says

TEXT = b"A letter about the weather."


@pytest.fixture
def reviewer(tenant: Tenant) -> Iterator[Reviewer]:
    """A reviewer that the tenant has registered and its bucket `asked` names."""
    with running_reviewer() as made:
        order = {"url": made.url, "status_url": made.status_url, "secrets": made.secrets}
        tenant.http.put("/reviewers/mine", json=order).raise_for_status()
        spec = {"kind": "webhook", "name": "mine", "reviewer": "mine", "poll_seconds": 2}
        tenant.bucket("asked", review_policy={"reviewers": [spec]})
        yield made


def asked(reviewer: Reviewer) -> dict[str, Any]:
    eventually(lambda: bool(reviewer.asked), PATIENCE)
    return reviewer.asked[0].question


def test_reviewer_looks_at_the_content_and_calls_back(tenant: Tenant, reviewer: Reviewer) -> None:
    answer = tenant.put("asked/a.txt", TEXT, "text/plain")
    assert answer["state"] == "reviewing"
    question = asked(reviewer)
    assert tenant.get("asked/a.txt").status_code == 404
    root = str(tenant.http.base_url).rstrip("/").removesuffix("/v1")
    assert httpx.get(root + question["content_path"]).content == TEXT

    answered = {"outcome": "pass", "reason": "fine"}
    headers, body = reviewer.message(answered, step_id=question["step_id"])
    heard = httpx.post(root + question["callback_path"], content=body, headers=headers)
    assert heard.status_code == 200, heard.text
    assert tenant.ended(answer["task_id"])["state"] == "completed"
    eventually(lambda: tenant.state("asked/a.txt") == "stored", PATIENCE)
    assert tenant.get("asked/a.txt").content == TEXT
    assert httpx.get(root + question["content_path"]).status_code == 409
    assert reviewer.forged == 0


def test_answer_whose_callback_is_lost_is_asked_for(tenant: Tenant, reviewer: Reviewer) -> None:
    answer = tenant.put("asked/b.txt", TEXT + b" It rains.", "text/plain")
    asked(reviewer)
    reviewer.status = says("reject", "no rain")
    assert tenant.ended(answer["task_id"])["state"] == "completed"
    [review] = tenant.http.get("/reviews", params={"state": "rejected"}).json()["items"]
    assert (review["key"], review["reason"]) == ("b.txt", "mine: no rain")
    assert tenant.get("asked/b.txt").status_code == 404


def test_bucket_is_reviewed_again_under_stricter_rules(tenant: Tenant) -> None:
    tenant.bucket("again", review_policy={"reject_keywords": ["contraband"]})
    for key, text in (("good", TEXT), ("bad", b"perhaps something")):
        answer = tenant.put(f"again/{key}", text, "text/plain")
        assert tenant.ended(answer["task_id"])["state"] == "completed"
        eventually(lambda key=key: tenant.state(f"again/{key}") == "stored", PATIENCE)
    tenant.bucket("again", review_policy={"reject_keywords": ["perhaps"]})
    run = tenant.http.post("/buckets/again:re-review").raise_for_status().json()

    def is_done() -> bool:
        return bool(tenant.http.get(f"/re-reviews/{run['id']}").json()["is_done"])

    eventually(is_done, PATIENCE)
    shown = tenant.http.get(f"/re-reviews/{run['id']}").json()
    assert shown["reviews"] == {"passed": 1, "rejected": 1}
    assert tenant.get("again/bad").status_code == 404
    assert tenant.get("again/good").content == TEXT
