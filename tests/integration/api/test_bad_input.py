"""What a client may get wrong: a clear refusal each time, and nothing stored."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.api.serving import connection, read_answer, status_of
from tests.integration.api.stack import BUCKET, OTHER, Stack, running_stack
from tests.support.eventually import eventually

CONTENT = b"0123456789" * 1000
PATH = f"/buckets/{BUCKET}/objects"


def refuse(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["code"] == code, document
    assert document["status"] == status
    assert document["detail"]
    assert document["request_id"] == answer.headers["x-request-id"]


def in_chunks(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), 1000):
        yield content[start : start + 1000]


def test_broken_promises_store_nothing(stack: Stack) -> None:
    other = b"other"
    with stack.client() as client:
        for headers, code in (
            ({"x-blox-sha256": hashlib.sha256(other).hexdigest()}, "sha256_mismatch"),
            (
                {"content-md5": base64.b64encode(hashlib.md5(other).digest()).decode()},
                "md5_mismatch",
            ),
            ({"x-blox-size": "5"}, "size_mismatch"),
            ({"x-blox-sha256": "abc"}, "sha256_invalid"),
            ({"content-md5": "abc"}, "content_md5_invalid"),
            ({"content-range": "bytes 0-9/10"}, "content_range"),
            ({"content-type": "x" * 300}, "content_type_invalid"),
            ({"x-blox-meta-a": "x" * 3000}, "metadata_invalid"),
            ({"if-match": "a b"}, "condition_invalid"),
        ):
            refuse(client.put(f"{PATH}/k", content=CONTENT, headers=headers), 400, code)
        for size in (len(CONTENT) - 1, len(CONTENT) + 1, 0):
            headers = {"x-blox-size": str(size)}
            answer = client.put(f"{PATH}/k", content=in_chunks(CONTENT), headers=headers)
            refuse(answer, 400, "size_mismatch")
    assert stack.is_untouched()


def test_connection_cut_in_the_middle_stores_nothing(stack: Stack) -> None:
    head = f"PUT /v1{PATH}/k HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {stack.secret()}\r\n"
    for rest in (
        b"content-length: 100000\r\n\r\n" + CONTENT,
        b"transfer-encoding: chunked\r\n\r\n2710\r\n" + CONTENT + b"\r\n",
    ):
        with connection(stack.address) as sock:
            sock.sendall(head.encode() + rest)
            eventually(lambda: stack.staged_files(), message="the body was being staged")
        eventually(lambda: not stack.staged_files(), message="the staged bytes are gone")
    assert stack.is_untouched()


def test_body_that_stops_coming_stores_nothing(tight_stack: Stack) -> None:
    secret = tight_stack.secret()
    with connection(tight_stack.address) as sock:
        sock.sendall(
            f"PUT /v1{PATH}/k HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
            "content-length: 10\r\n\r\nhello".encode()
        )
        answer = read_answer(sock)
    assert status_of(answer) == 408
    assert tight_stack.is_untouched()


def test_json_that_drips_is_cut_off_before_anybody_is_asked_who_sends_it(
    tight_stack: Stack,
) -> None:
    dripping = threading.Event()
    with connection(tight_stack.address) as sock:
        sock.sendall(b"POST /v1/tenants HTTP/1.1\r\nhost: x\r\ncontent-length: 9000\r\n\r\n")

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not dripping.wait(0.1):
                    sock.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        answer = read_answer(sock)
        dripping.set()
        thread.join(10)
    assert status_of(answer) == 408


def test_keys_that_break_a_rule_store_nothing(stack: Stack) -> None:
    """Sent raw: client libraries would tidy these addresses up."""
    secret = stack.secret()
    for key in (
        b"..",
        b"../../etc/passwd",
        b"a/../b",
        b"%2e%2e",
        b"a/%2e%2e/b",
        b".",
        b"%00",
        b"a%00b",
        b"%ff%fe",
        b"%ed%a0%80",
        b"x" * 1025,
        b"%C3%A9" * 513,
        b"",
    ):
        with connection(stack.address) as sock:
            sock.sendall(
                b"PUT /v1" + PATH.encode() + b"/" + key + b" HTTP/1.1\r\nhost: x\r\n"
                b"authorization: Bearer " + secret.encode() + b"\r\n"
                b"content-length: 5\r\nconnection: close\r\n\r\nhello"
            )
            answer = read_answer(sock)
        assert status_of(answer) == 400, (key, answer)
        document = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert document["code"] == "key_invalid", key
    assert stack.is_untouched()


def test_bucket_that_is_not_there(stack: Stack) -> None:
    stack.make_bucket("theirs", tenant=OTHER)
    with stack.client() as client:
        for bucket in ("nowhere", "theirs", "Not%20a%20name", "a" * 63):
            path = f"/buckets/{bucket}/objects"
            refuse(client.put(f"{path}/k", content=CONTENT), 404, "bucket_not_found")
            refuse(client.get(f"{path}/k"), 404, "bucket_not_found")
            refuse(client.get(path), 404, "bucket_not_found")
            refuse(client.delete(f"{path}/k"), 404, "bucket_not_found")
        refuse(client.get(f"{PATH}/k"), 404, "object_not_found")
    assert stack.is_untouched()


def test_too_large_is_refused_by_its_length_and_while_it_comes(tight_stack: Stack) -> None:
    large = b"x" * 100_001
    with tight_stack.client() as client:
        refuse(client.put(f"{PATH}/k", content=large), 413, "too_large")
        refuse(client.put(f"{PATH}/k", content=in_chunks(large)), 413, "too_large")
        tight_stack.make_bucket("small", max_object_bytes=10)
        small = "/buckets/small/objects/k"
        refuse(client.put(small, content=b"x" * 11), 413, "too_large")
        refuse(client.put(small, content=in_chunks(b"x" * 11)), 413, "too_large")
        assert tight_stack.is_untouched()
        assert client.put(small, content=b"x" * 10).status_code == 202


def test_client_that_waits_for_100_continue_is_refused_before_its_body(tight_stack: Stack) -> None:
    secret = tight_stack.secret()
    with connection(tight_stack.address) as sock:
        sock.sendall(
            f"PUT /v1{PATH}/k HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
            "expect: 100-continue\r\ncontent-length: 100001\r\n\r\n".encode()
        )
        answer = read_answer(sock)
    assert status_of(answer) == 413


def test_keys_of_callers(stack: Stack) -> None:
    url = f"{stack.address.url}/v1{PATH}/k"
    for headers in ({}, {"authorization": "Basic abc"}, {"authorization": "Bearer"}):
        answer = httpx.put(url, content=CONTENT, headers=headers)
        refuse(answer, 401, "key_missing")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    for secret in (b"blox_unknown", "é".encode(), b"x" * 300):
        odd = {b"authorization": b"Bearer " + secret}
        answer = httpx.put(url, content=CONTENT, headers=odd)
        assert answer.status_code == 401, secret
    with stack.client("objects:read") as client:
        refuse(client.put(f"{PATH}/k", content=CONTENT), 403, "scope_missing")
        refuse(client.delete(f"{PATH}/k"), 403, "scope_missing")
        refuse(client.get("/tasks"), 403, "scope_missing")
        refuse(client.get("/tenants"), 403, "scope_missing")
        refuse(client.get(f"{PATH}/k"), 404, "object_not_found")
    assert stack.is_untouched()


def test_json_that_is_not(tight_stack: Stack) -> None:
    json_type = {"content-type": "application/json"}
    with tight_stack.client() as client:
        for path in ("/buckets/new-one", f"/buckets/{BUCKET}"):
            refuse(client.put(path, content=b"{", headers=json_type), 400, "json_invalid")
            refuse(client.put(path, content=b"\xff\xfe", headers=json_type), 400, "json_invalid")
            refuse(client.put(path, json=[1]), 422, "validation")
            refuse(client.put(path, json={"channels": "disk-1"}), 422, "validation")
            refuse(client.put(path, json={"channels": [], "x": 1}), 422, "validation")
            large = b'"' + b"x" * 20_000
            refuse(client.put(path, content=large, headers=json_type), 413, "too_large")
            refuse(client.put(path, content=in_chunks(large), headers=json_type), 413, "too_large")
        upload = f"/buckets/{BUCKET}/instant-uploads"
        refuse(client.post(upload, content=b"nope", headers=json_type), 400, "json_invalid")
        refuse(client.post(upload, json={"key": "k"}), 422, "validation")
        refuse(
            client.post(upload, json={"key": "..", "sha256": "0" * 64, "size": 1}),
            400,
            "key_invalid",
        )
        refuse(
            client.post(upload, json={"key": "k", "sha256": "0" * 64, "size": 1}),
            404,
            "content_unknown",
        )
        refuse(client.get("/tasks", params={"state": "odd"}), 422, "validation")
        refuse(client.get("/tasks/abc"), 422, "validation")
        refuse(client.get("/tasks", params={"limit": 0}), 422, "validation")
    assert tight_stack.is_untouched()


def test_backlog_is_refused_before_the_body(tight_stack: Stack) -> None:
    with tight_stack.client() as client, tight_stack.client(tenant=OTHER) as other:
        for number in range(3):
            assert client.put(f"{PATH}/{number}", content=b"x").status_code == 202
        files = tight_stack.staged_files()
        answer = client.put(f"{PATH}/3", content=CONTENT)
        refuse(answer, 429, "backlog_full")
        assert int(answer.headers["retry-after"]) >= 1
        assert tight_stack.staged_files() == files
        assert tight_stack.count("versions") == 3
        assert other.put(f"{PATH}/3", content=b"x").status_code == 202


@pytest.mark.databases("sqlite")
def test_full_staging_is_said_before_the_body(
    blox_url: str, redis_url: str, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("full")
    with (
        running_stack(blox_url, redis_url, namespace, root, min_free_bytes=2**60) as full,
        full.client() as client,
    ):
        answer = client.put(f"{PATH}/k", content=CONTENT)
        refuse(answer, 507, "channel_full")
        assert "retry-after" in answer.headers
        assert str(root) not in answer.text
        assert full.is_untouched()


def test_a_body_has_no_names_that_are_passed_over(stack: Stack) -> None:
    client = stack.client()
    client.put(f"/buckets/{BUCKET}/objects/k", content=b"x")
    answer = client.post(f"/buckets/{BUCKET}/removals", json={"prefix": "k", "dry-run": True})
    refuse(answer, 422, "validation")
    assert client.get(f"/buckets/{BUCKET}/objects/k").content == b"x"

    document = httpx.get(f"{stack.address.url}/openapi.json").json()
    schemas = document["components"]["schemas"]
    lenient = {
        name
        for methods in document["paths"].values()
        for route in methods.values()
        for content in route.get("requestBody", {}).get("content", {}).values()
        for name in re.findall(r"#/components/schemas/(\w+)", json.dumps(content["schema"]))
        if schemas[name].get("additionalProperties") is not False
    }
    assert lenient == set()


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
def test_a_body_that_says_it_is_no_json_is_told_so(stack: Stack, kind: str) -> None:
    client = stack.client()
    headers = {"content-type": kind}
    address = f"/buckets/{BUCKET}/removals"
    answer = client.post(address, content=b'{"prefix": "k"}', headers=headers)
    refuse(answer, 400, "content_type_invalid")
    assert "application/json" in answer.json()["detail"]
    for fine in ("application/json; charset=utf-8", "Application/Merge-Patch+JSON"):
        headers = {"content-type": fine}
        assert client.post(address, content=b'{"prefix": "k"}', headers=headers).is_success
