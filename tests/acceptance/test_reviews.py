"""A reviewed bucket: what passes by itself, what a person decides, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.product import PATIENCE, Product, Tenant
from tests.support.eventually import eventually

POLICY = {"reject_keywords": ["contraband"], "doubtful_keywords": ["perhaps"], "max_bytes": 10_000}


@pytest.fixture
def reviewed(tenant: Tenant) -> Tenant:
    tenant.bucket("reviewed", review_policy=POLICY)
    return tenant


def reviews(tenant: Tenant, state: str) -> list[dict[str, Any]]:
    answer = tenant.http.get("/reviews", params={"state": state})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


def put(tenant: Tenant, key: str, text: str, content_type: str = "text/plain") -> None:
    answer = tenant.put(f"reviewed/{key}", text.encode(), content_type)
    assert answer["state"] == "reviewing"
    assert tenant.ended(answer["task_id"])["state"] == "completed"


def test_what_passes_is_stored_and_what_does_not_is_never_readable(
    product: Product, reviewed: Tenant
) -> None:
    put(reviewed, "good.txt", "A letter about the weather.")
    eventually(lambda: reviewed.state("reviewed/good.txt") == "stored", PATIENCE)
    put(reviewed, "bad.txt", "We offer contraband of all sorts.")
    put(reviewed, "large.txt", "x" * 10_001)
    put(reviewed, "no.png", "%PDF-1.7 This is no picture.", "image/png")
    assert reviewed.get("reviewed/good.txt").text == "A letter about the weather."
    refused = {"bad.txt", "large.txt", "no.png"}
    for key in refused:
        assert reviewed.get(f"reviewed/{key}").status_code == 404
    assert {review["key"] for review in reviews(reviewed, "rejected")} == refused
    assert len(product.keys_on("main", reviewed)) == 1, "rejected bytes never reach a channel"
    # A verdict counts for the same content under the same rules.
    answer = reviewed.put("reviewed/again.txt", b"A letter about the weather.", "text/plain")
    assert answer["state"] == "stored"


def test_a_person_decides_what_is_doubtful(reviewed: Tenant) -> None:
    put(reviewed, "yes.txt", "perhaps one thing")
    put(reviewed, "no.txt", "perhaps another thing")
    assert reviewed.get("reviewed/yes.txt").status_code == 404
    waiting = {review["key"]: review["id"] for review in reviews(reviewed, "doubtful")}
    assert set(waiting) == {"yes.txt", "no.txt"}

    order = {"reason": "I have read it"}
    passed = reviewed.http.post(f"/reviews/{waiting['yes.txt']}:approve", json=order)
    assert (passed.status_code, passed.json()["state"]) == (200, "passed")
    eventually(lambda: reviewed.state("reviewed/yes.txt") == "stored", PATIENCE)
    assert reviewed.get("reviewed/yes.txt").text == "perhaps one thing"

    refused = reviewed.http.post(f"/reviews/{waiting['no.txt']}:reject", json=order)
    assert (refused.status_code, refused.json()["state"]) == (200, "rejected")
    assert reviewed.get("reviewed/no.txt").status_code == 404
    shown = reviewed.http.get(f"/reviews/{waiting['no.txt']}").json()
    assert (shown["reason"], shown["decided_by"]) == (
        "I have read it",
        f"{reviewed.name}/acceptance",
    )
    again = reviewed.http.post(f"/reviews/{waiting['no.txt']}:approve")
    assert (again.status_code, again.json()["code"]) == (409, "review_not_waiting")


def test_an_overwrite_that_is_in_review_leaves_the_old_content_readable(reviewed: Tenant) -> None:
    put(reviewed, "a.txt", "first")
    eventually(lambda: reviewed.state("reviewed/a.txt") == "stored", PATIENCE)
    put(reviewed, "a.txt", "perhaps second")
    assert reviewed.get("reviewed/a.txt").text == "first"
    put(reviewed, "a.txt", "third, contraband")
    assert reviewed.get("reviewed/a.txt").text == "first"


def test_rules_that_change_are_brought_to_what_is_there(reviewed: Tenant) -> None:
    for key, text in (("good.txt", "a letter"), ("odd.txt", "a letter of marque")):
        put(reviewed, key, text)
        eventually(lambda key=key: reviewed.state(f"reviewed/{key}") == "stored", PATIENCE)
    reviewed.bucket("reviewed", review_policy={**POLICY, "reject_keywords": ["marque"]})
    (run,) = reviewed.http.get("/buckets/reviewed/re-reviews").json()["items"]
    assert run["started_by"] == "policy change"

    def done() -> dict[str, Any]:
        shown: dict[str, Any] = reviewed.http.get(f"/re-reviews/{run['id']}").json()
        return shown if shown["is_done"] else {}

    shown = eventually(done, PATIENCE)
    assert (shown["state"], shown["reviews"]) == ("planned", {"passed": 1, "rejected": 1})
    assert reviewed.get("reviewed/good.txt").text == "a letter"
    assert reviewed.get("reviewed/odd.txt").status_code == 404
    # A mistake: what was blocked is kept for a while.
    chosen = {"run_id": run["id"], "state": "rejected"}
    (blocked,) = reviewed.http.get("/reviews", params=chosen).json()["items"]
    assert blocked["key"] == "odd.txt"
    released = reviewed.http.post(f"/reviews/{blocked['id']}:release")
    assert (released.status_code, released.json()["state"]) == (200, "passed"), released.text
    assert reviewed.get("reviewed/odd.txt").text == "a letter of marque"
    reviewed.bucket("reviewed", review_policy={**POLICY, "on_change": "leave"})
    assert len(reviewed.http.get("/buckets/reviewed/re-reviews").json()["items"]) == 1
