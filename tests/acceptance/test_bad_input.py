"""What clients get wrong, against the real stack: a clear answer, and nothing stored anywhere."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from tests.acceptance.product import PATIENCE, Product, Tenant, random_bytes
from tests.support.eventually import eventually

TABLES = ("objects", "versions", "blobs", "tasks", "reviews")
CONTENT = b"0123456789" * 1000
#: Something else than what the content's hash is.
WRONG = "0" * 64


@pytest.fixture
def nothing_stored(product: Product, tenant: Tenant) -> Iterator[Callable[[], None]]:
    """Compare database, channel and staging with what they were before the test."""
    before = product.staged_files()

    def assert_untouched() -> None:
        for table in TABLES[1:]:
            assert product.count(table, tenant) == 0, table
        assert tenant.http.get("/buckets/files/objects").json()["items"] == []
        assert product.keys_on("main", tenant) == []
        eventually(lambda: product.staged_files() <= before, PATIENCE)

    yield assert_untouched
    assert_untouched()


def raw(product: Product, *pieces: bytes, wait: bool = True) -> bytes:
    """Send a request as no client library would, and return all that comes back."""
    address = urlsplit(product.stack.api_url)
    with socket.create_connection((str(address.hostname), address.port), timeout=20) as sock:
        for piece in pieces:
            sock.sendall(piece)
        if not wait:
            return b""
        answer = b""
        while chunk := sock.recv(65536):
            answer += chunk
        return answer


def head(tenant: Tenant, key: bytes, length: int) -> bytes:
    return (
        b"PUT /v1/buckets/files/objects/" + key + b" HTTP/1.1\r\nhost: x\r\n"
        b"authorization: Bearer " + tenant.secret.encode() + b"\r\n"
        b"content-length: " + str(length).encode() + b"\r\nconnection: close\r\n\r\n"
    )


def refused(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == code, problem
    assert problem["detail"]


@pytest.mark.usefixtures("nothing_stored")
def test_wrong_hash_and_wrong_length(tenant: Tenant) -> None:
    path = "/buckets/files/objects/a"
    for headers, code in (
        ({"x-blox-sha256": WRONG}, "sha256_mismatch"),
        ({"content-md5": "AAAAAAAAAAAAAAAAAAAAAA=="}, "md5_mismatch"),
        ({"x-blox-size": "9999"}, "size_mismatch"),
    ):
        refused(tenant.http.put(path, content=CONTENT, headers=headers), 400, code)


def test_a_connection_that_is_cut(
    product: Product, tenant: Tenant, nothing_stored: Callable[[], None]
) -> None:
    before = product.staged_files()
    address = urlsplit(product.stack.api_url)
    with socket.create_connection((str(address.hostname), address.port), timeout=20) as sock:
        sock.sendall(head(tenant, b"a", 1_000_000) + CONTENT)
        eventually(lambda: product.staged_files() - before, PATIENCE, message="bytes arrive")
    eventually(lambda: product.staged_files() <= before, PATIENCE, message="they are gone")
    nothing_stored()


@pytest.mark.usefixtures("nothing_stored")
def test_keys_that_no_object_may_have(product: Product, tenant: Tenant) -> None:
    for key in (
        b"..",
        b"../../etc/passwd",
        b"a/../b",
        b"%2e%2e",
        b"a/%2E%2E/b",
        b".",
        b"%00",
        b"a%00b",
        b"%ff%fe",
        b"x" * 1025,
        b"%C3%A9" * 513,
    ):
        answer = raw(product, head(tenant, key, 5), b"hello")
        status, _, rest = answer.partition(b"\r\n")
        assert status.split()[1] == b"400", (key, answer)
        assert json.loads(rest.partition(b"\r\n\r\n")[2])["code"] == "key_invalid", key


@pytest.mark.usefixtures("nothing_stored")
def test_a_bucket_that_is_not_there_and_json_that_is_not(tenant: Tenant) -> None:
    missing = "/buckets/nowhere/objects/a"
    refused(tenant.http.put(missing, content=CONTENT), 404, "bucket_not_found")
    json_type = {"content-type": "application/json"}
    for path in ("/buckets/new-one", "/buckets/files"):
        for content in (b"{", b"\xff\xfe", b""):
            answer = tenant.http.put(path, content=content, headers=json_type)
            refused(answer, answer.status_code, answer.json()["code"])
            assert answer.status_code in (400, 422), answer.text
    upload = "/buckets/files/instant-uploads"
    refused(tenant.http.post(upload, content=b"no", headers=json_type), 400, "json_invalid")
    buckets = tenant.http.get("/buckets").json()["items"]
    assert [bucket["name"] for bucket in buckets] == ["files"]


def test_odd_keys_and_empty_bodies_that_are_allowed(tenant: Tenant) -> None:
    longest = "k" * 1024
    content = random_bytes(10)
    for key in ("日本語/ключ/🗝", "a b+c&d=e?f", "..a", "a..b", "a/b/c", "%2e", longest):
        assert tenant.put(f"files/{key}", content)["key"] == key
        assert tenant.get(f"files/{key}").content == content
    tenant.store("files/empty", b"")
    assert tenant.get("files/empty").content == b""
    listed = tenant.http.get("/buckets/files/objects").json()["items"]
    assert len(listed) == 8
