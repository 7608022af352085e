"""Reviewed buckets over HTTP: not readable before a person or the reviewers let it pass."""

from __future__ import annotations

import hashlib

from sqlalchemy.orm import Session

from shared.catalog.models import Review, ReviewState
from shared.catalog.review_policy import ReviewPolicy
from tests.integration.api.stack import BUCKET, CHANNEL, OTHER, TENANT, Stack

PATH = "/buckets/checked/objects"
CONTENT = b"to be looked at"


def waiting_review(stack: Stack, key: str = "k") -> int:
    """Put content whose review waits for a person, as the review worker would leave it."""
    with stack.client() as client:
        answer = client.put(f"{PATH}/{key}", content=CONTENT)
        assert (answer.status_code, answer.json()["state"]) == (202, "reviewing")
        [review, *_] = client.get("/reviews", params={"state": "open"}).json()["items"]
        with Session(stack.engine) as session, session.begin():
            session.get_one(Review, review["id"]).state = ReviewState.DOUBTFUL
        return int(review["id"])


def test_content_in_review_is_not_readable_until_approved(stack: Stack) -> None:
    stack.make_reviewed_bucket("checked")
    review_id = waiting_review(stack)
    with stack.client() as client:
        assert client.get(f"{PATH}/k").status_code == 404
        assert client.get(PATH).json()["items"] == []
        [listed] = client.get("/reviews", params={"state": "doubtful"}).json()["items"]
        assert (listed["id"], listed["bucket"], listed["key"]) == (review_id, "checked", "k")
        assert listed["sha256"] == hashlib.sha256(CONTENT).hexdigest()
        approved = client.post(f"/reviews/{review_id}:approve", json={"reason": "harmless"})
        assert (approved.status_code, approved.json()["state"]) == (200, "passed"), approved.text
        assert client.get(f"{PATH}/k").content == CONTENT
        shown = client.get(f"/reviews/{review_id}").json()
        assert (shown["decided_by"], shown["reason"]) == (f"{TENANT}/test", "harmless")
        assert shown["steps"] == []
        again = client.post(f"/reviews/{review_id}:reject")
        assert (again.status_code, again.json()["code"]) == (409, "review_not_waiting")


def test_rejected_content_stays_unreadable(stack: Stack) -> None:
    stack.make_reviewed_bucket("checked", ReviewPolicy(fail_mode="human"))
    review_id = waiting_review(stack)
    with stack.client() as client:
        once = {"idempotency-key": "r1"}
        rejected = client.post(f"/reviews/{review_id}:reject", headers=once)
        assert (rejected.status_code, rejected.json()["state"]) == (200, "rejected")
        repeated = client.post(f"/reviews/{review_id}:reject", headers=once)
        assert (repeated.status_code, repeated.json()) == (200, rejected.json())
        assert client.get(f"{PATH}/k").status_code == 404


def test_another_tenants_review_is_not_found(stack: Stack) -> None:
    stack.make_reviewed_bucket("checked")
    review_id = waiting_review(stack)
    with stack.client(tenant=OTHER) as theirs:
        assert theirs.get("/reviews").json()["items"] == []
        for answer in (
            theirs.get(f"/reviews/{review_id}"),
            theirs.post(f"/reviews/{review_id}:approve"),
            theirs.post(f"/reviews/{review_id}:reject"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, "review_not_found")
    with stack.client("reviews:read") as reader:
        refused = reader.post(f"/reviews/{review_id}:approve")
        assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing")


def test_blocked_content_is_released_or_destroyed_by_a_person(stack: Stack) -> None:
    stack.make_reviewed_bucket("checked")
    with stack.client() as client, stack.client(tenant=OTHER) as theirs:
        released, destroyed = waiting_review(stack, "good"), waiting_review(stack, "bad")
        for review_id in (released, destroyed):
            early = client.post(f"/reviews/{review_id}:release")
            assert (early.status_code, early.json()["code"]) == (409, "review_not_rejected")
            client.post(f"/reviews/{review_id}:reject")
        assert client.get(f"{PATH}/good").status_code == 404
        assert theirs.post(f"/reviews/{released}:release").status_code == 404

        passed = client.post(f"/reviews/{released}:release", json={"reason": "a mistake"})
        assert (passed.status_code, passed.json()["state"]) == (200, "passed"), passed.text
        assert client.get(f"{PATH}/good").content == CONTENT

        before = len(stack.staged_files())
        once = {"idempotency-key": "d1"}
        for _ in range(2):
            gone = client.post(f"/reviews/{destroyed}:destroy", headers=once)
            assert (gone.status_code, gone.json()["state"]) == (200, "rejected"), gone.text
        assert len(stack.staged_files()) == before - 1
        late = client.post(f"/reviews/{destroyed}:release")
        assert (late.status_code, late.json()["code"]) == (409, "bytes_gone")
        assert client.get(f"{PATH}/bad").status_code == 404


def test_bucket_is_reviewed_again_with_progress(stack: Stack) -> None:
    stack.make_reviewed_bucket("checked")
    review_id = waiting_review(stack)
    with stack.client() as client, stack.client(tenant=OTHER) as theirs:
        client.post(f"/reviews/{review_id}:approve")
        changed = {"channels": [CHANNEL], "review_policy": {"max_bytes": 3}}
        assert client.put("/buckets/checked", json=changed).status_code == 200
        started = client.post("/buckets/checked:re-review")
        assert started.status_code == 202, started.text
        run_id = started.json()["id"]
        assert client.post("/buckets/checked:re-review").json() == started.json()
        shown = client.get(f"/re-reviews/{run_id}").json()
        assert (shown["state"], shown["is_done"], shown["reviews"]) == ("running", False, {})
        [listed] = client.get("/buckets/checked/re-reviews").json()["items"]
        assert listed["task_id"] == started.json()["task_id"]
        assert theirs.get(f"/re-reviews/{run_id}").status_code == 404
        assert theirs.post("/buckets/checked:re-review").status_code == 404
        plain = client.post(f"/buckets/{BUCKET}:re-review")
        assert (plain.status_code, plain.json()["code"]) == (400, "bucket_not_reviewed")
    with stack.client("reviews:read") as reader:
        assert reader.post("/buckets/checked:re-review").status_code == 403
