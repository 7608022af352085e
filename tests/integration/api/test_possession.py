"""Uploads by hash where the bucket wants a proof that the content is really there."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.catalog.possession import RANGE_BYTES
from tests.integration.api.stack import BUCKET, OTHER, Stack, running_stack
from tests.integration.api.working import uploading_worker
from tests.support.eventually import eventually

pytestmark = pytest.mark.databases("sqlite")

CONTENT = random.Random(9).randbytes(3 * RANGE_BYTES + 7)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FACTS: dict[str, Any] = {"sha256": SHA256, "size": len(CONTENT)}
#: Seconds that the application's clock is ahead.
AHEAD = [0.0]


@pytest.fixture
def stack(blox_url: str, redis_url: str, namespace: str, tmp_path: Path) -> Iterator[Stack]:
    """The application, with the content stored in a bucket that wants proofs."""
    AHEAD[0] = 0.0

    def clock() -> float:
        return time.time() + AHEAD[0]

    with running_stack(blox_url, redis_url, namespace, tmp_path, clock=clock) as running:
        running.make_bucket("proofs", instant_upload="challenge")
        with uploading_worker(running, redis_url, namespace), running.client() as client:
            put = client.put(f"/buckets/{BUCKET}/objects/a", content=CONTENT)
            task = put.headers["location"].removeprefix("/v1")
            eventually(lambda: client.get(task).json()["state"] == "completed", 20)
        yield running


def challenge(client: httpx.Client, **facts: Any) -> dict[str, Any]:
    answer = client.post("/buckets/proofs/instant-uploads:challenge", json=facts or FACTS)
    assert answer.status_code == 201, answer.text
    asked: dict[str, Any] = answer.json()
    return asked


def proof(asked: dict[str, Any], content: bytes = CONTENT) -> dict[str, str]:
    part = content[asked["offset"] : asked["offset"] + asked["length"]]
    digest = hashlib.sha256(bytes.fromhex(asked["salt"]) + part).hexdigest()
    return {"token": asked["token"], "digest": digest}


def upload(client: httpx.Client, bucket: str = "proofs", **more: Any) -> tuple[int, str]:
    order = {"key": "b", **FACTS, **more}
    answer = client.post(f"/buckets/{bucket}/instant-uploads", json=order)
    body = answer.json()
    return answer.status_code, body.get("code", body.get("state"))


def test_who_has_the_content_proves_it(stack: Stack) -> None:
    with stack.client() as client:
        asked = [challenge(client) for _ in range(3)]
        assert len({(one["offset"], one["salt"]) for one in asked}) == 3
        assert all(one["offset"] + one["length"] <= len(CONTENT) for one in asked)
        assert all(one["length"] == RANGE_BYTES for one in asked)
        assert upload(client, proof=proof(asked[0])) == (201, "stored")
        assert client.get("/buckets/proofs/objects/b").content == CONTENT


def test_who_knows_only_the_hash_gets_nothing(stack: Stack) -> None:
    with stack.client() as client:
        assert upload(client) == (403, "possession_unproven")
        asked = challenge(client)
        assert upload(client, proof=proof(asked, bytes(len(CONTENT)))) == (
            403,
            "possession_unproven",
        )
        assert upload(client, proof={"token": asked["token"], "digest": "ü"})[0] == 403
        assert client.get("/buckets/proofs/objects/b").status_code == 404
        # A hash alone is enough where the bucket says so, as they do unless told otherwise.
        assert upload(client, BUCKET) == (201, "stored")


def test_challenge_is_for_one_content_one_tenant_and_a_while(stack: Stack) -> None:
    with stack.client() as client, stack.client(tenant=OTHER) as other:
        stack.make_bucket("proofs", tenant=OTHER, instant_upload="challenge")
        small = challenge(client, sha256=SHA256, size=10)
        assert small["length"] == 10
        assert upload(client, proof=proof(small)) == (403, "challenge_unknown")
        assert upload(client, proof=proof(challenge(other))) == (403, "challenge_unknown")
        asked = challenge(client)
        for token in ("", "x", asked["token"][:-4], asked["token"][::-1]):
            wrong = {**proof(asked), "token": token}
            assert upload(client, proof=wrong) == (403, "challenge_unknown"), token
        AHEAD[0] = 301
        assert upload(client, proof=proof(asked)) == (403, "challenge_expired")
        # The other tenant has no such content: what there is of it is nobody else's.
        assert upload(other, proof=proof(challenge(other))) == (404, "content_unknown")


def test_repeated_request_gets_its_answer_after_the_challenge_has_expired(stack: Stack) -> None:
    with stack.client() as client:
        order = {"key": "b", **FACTS, "proof": proof(challenge(client))}

        def send(key: str) -> httpx.Response:
            return client.post(
                "/buckets/proofs/instant-uploads", json=order, headers={"idempotency-key": key}
            )

        first = send("one")
        assert first.status_code == 201
        AHEAD[0] = 301.0
        again = send("one")
        assert (again.status_code, again.json()) == (201, first.json())
        other = send("two")
        assert (other.status_code, other.json()["code"]) == (403, "challenge_expired")


def test_bucket_may_take_no_content_by_its_hash(stack: Stack) -> None:
    stack.make_bucket("bytes-only", instant_upload="off")
    with stack.client() as client:
        assert upload(client, "bytes-only") == (403, "instant_upload_off")
        assert upload(client, "bytes-only", proof=proof(challenge(client)))[0] == 403
        rules = client.get("/buckets/bytes-only").json()
        assert rules["instant_upload"] == "off"
        # Whoever sends the bytes has them: stored at once all the same.
        put = client.put("/buckets/bytes-only/objects/b", content=CONTENT)
        assert (put.status_code, put.json()["state"]) == (201, "stored")
        order = {"channels": rules["channels"], "instant_upload": "maybe"}
        assert client.put("/buckets/bytes-only", json=order).status_code == 422


def test_empty_content_is_proven_by_the_salt(stack: Stack, redis_url: str, namespace: str) -> None:
    empty = hashlib.sha256(b"").hexdigest()
    with uploading_worker(stack, redis_url, namespace), stack.client() as client:
        put = client.put(f"/buckets/{BUCKET}/objects/empty", content=b"")
        task = put.headers["location"].removeprefix("/v1")
        eventually(lambda: client.get(task).json()["state"] == "completed", 20)
        asked = challenge(client, sha256=empty, size=0)
        done = upload(client, sha256=empty, size=0, proof=proof(asked, b""))
        assert done == (201, "stored")
