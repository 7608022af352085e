"""Links: what one allows, and that nothing else passes for it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import httpx
import pytest

from tests.integration.api.stack import BUCKET, OTHER, TENANT, Stack, running_stack

pytestmark = pytest.mark.databases("sqlite")

KEY = "päth/a b%2F?#c"
CONTENT = b"linked content"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
#: Every field of a link for a PUT that binds all it can.
BOUND = {"content_type": "text/plain", "max_bytes": 100, "sha256": SHA256}


@dataclass
class Clock:
    """Time as the application sees it."""

    offset: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.offset


@dataclass
class Linked:
    """The application, a key that makes links, and a client without any."""

    stack: Stack
    clock: Clock
    maker: httpx.Client
    nobody: httpx.Client
    scopes: tuple[str, ...] = field(default=())

    def link(self, method: str, *, key: str = KEY, **terms: Any) -> dict[str, Any]:
        order = {"method": method, "key": key, **terms}
        answer = self.maker.post(f"/buckets/{BUCKET}/links", json=order)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def send(self, url: str, method: str = "GET", **more: Any) -> httpx.Response:
        return self.nobody.request(method, url, **more)


@pytest.fixture
def linked(blox_url: str, redis_url: str, namespace: str, tmp_path: Path) -> Iterator[Linked]:
    clock = Clock()
    with (
        running_stack(blox_url, redis_url, namespace, tmp_path, clock=clock) as stack,
        stack.client("objects:read", "objects:write") as maker,
        httpx.Client(timeout=30) as nobody,
    ):
        yield Linked(stack, clock, maker, nobody)


def refused(answer: httpx.Response, status: int, code: str) -> bool:
    """Tell whether it is refused so; a HEAD has no body to say why."""
    is_head = answer.request.method == "HEAD"
    assert (answer.status_code, is_head or answer.json()["code"]) == (status, is_head or code)
    return True


def changed(url: str, name: str, value: str | None) -> str:
    """Return a link with one field replaced, or left out."""
    address, _, query = url.partition("?")
    fields = dict(parse_qsl(query))
    fields.pop(name, None)
    return f"{address}?{urlencode(fields | ({} if value is None else {name: value}))}"


@pytest.mark.databases("sqlite", "mariadb")
def test_whoever_has_links_puts_asks_and_gets(linked: Linked) -> None:
    put = linked.link("PUT", **BOUND)
    assert put["headers"] == {"content-type": "text/plain"}
    answer = linked.send(put["url"], "PUT", content=CONTENT, headers=put["headers"])
    assert answer.status_code == 202, answer.text
    get = linked.link("GET", expires_seconds=60)
    got = linked.send(get["url"])
    assert (got.status_code, got.content) == (200, CONTENT)
    part = linked.send(get["url"], headers={"range": "bytes=7-"})
    assert (part.status_code, part.content) == (206, b"content")
    head = linked.send(linked.link("HEAD")["url"], "HEAD")
    assert (head.status_code, head.headers["x-blox-sha256"]) == (200, SHA256)


def test_body_that_breaks_what_the_link_binds_is_not_stored(linked: Linked) -> None:
    text = {"content-type": "text/plain"}
    url = linked.link("PUT", **BOUND)["url"]
    other = linked.send(url, "PUT", content=CONTENT, headers={"content-type": "text/html"})
    assert refused(other, 403, "link_type")
    assert refused(linked.send(url, "PUT", content=bytes(14), headers=text), 400, "sha256_mismatch")
    said = {**text, "x-blox-sha256": "0" * 64}
    assert refused(linked.send(url, "PUT", content=CONTENT, headers=said), 400, "sha256_mismatch")
    small = linked.link("PUT", max_bytes=5)["url"]
    for size in (6, 100_000):
        assert refused(linked.send(small, "PUT", content=bytes(size)), 413, "too_large")
        chunks = iter([bytes(size)])
        assert refused(linked.send(small, "PUT", content=chunks), 413, "too_large")
    assert linked.stack.is_untouched()
    assert linked.send(small, "PUT", content=b"fives").status_code == 202


def test_changing_any_field_breaks_the_signature(linked: Linked) -> None:
    url = linked.link("PUT", **BOUND)["url"]
    with linked.stack.client("objects:read", "objects:write") as other:
        foreign = other.post(f"/buckets/{BUCKET}/links", json={"method": "GET", "key": KEY}).json()
    other_key = dict(parse_qsl(foreign["url"].partition("?")[2]))["blox-key"]
    now = int(time.time())
    changes: list[tuple[str, str | None]] = [
        ("blox-key", other_key),
        ("blox-key", "999999"),
        ("blox-key", "-1"),
        ("blox-expires", str(now + 600_000)),
        ("blox-expires", "x"),
        ("blox-method", "GET"),
        ("blox-method", "put"),
        ("blox-type", "text/html"),
        ("blox-type", ""),
        ("blox-max-bytes", "101"),
        ("blox-max-bytes", "1e9"),
        ("blox-sha256", "0" * 64),
        ("blox-sha256", "x"),
        ("blox-signature", "0" * 64),
        ("blox-signature", "ü"),
        ("blox-signature", ""),
        ("blox-signature", dict(parse_qsl(foreign["url"].partition("?")[2]))["blox-signature"]),
        *((name, None) for name in ("blox-key", "blox-expires", "blox-method", "blox-type")),
        *((name, None) for name in ("blox-max-bytes", "blox-sha256")),
    ]
    text = {"content-type": "text/plain"}
    for name, value in changes:
        answer = linked.send(changed(url, name, value), "PUT", content=CONTENT, headers=text)
        assert refused(answer, 403, "link_signature"), (name, value)
    unsigned = linked.send(changed(url, "blox-signature", None), "PUT", content=CONTENT)
    assert refused(unsigned, 401, "key_missing")
    for old, new in ((f"/{BUCKET}/", "/other/"), ("/objects/", "/objects/x")):
        moved = linked.send(url.replace(old, new, 1), "PUT", content=CONTENT, headers=text)
        assert refused(moved, 403, "link_signature")
    assert linked.stack.is_untouched()


def test_link_is_for_one_method(linked: Linked) -> None:
    linked.maker.put(f"/buckets/{BUCKET}/objects/a", content=CONTENT).raise_for_status()
    for method in ("GET", "HEAD", "PUT"):
        url = linked.link(method, key="a")["url"]
        for other in {"GET", "HEAD", "PUT"} - {method}:
            body = {"content": CONTENT} if other == "PUT" else {}
            assert refused(linked.send(url, other, **body), 403, "link_method")
    # What takes no links asks for a key.
    assert refused(linked.send(url, "DELETE"), 401, "key_missing")
    listing = url.replace("/objects/a", "/objects", 1)
    assert refused(linked.send(listing), 401, "key_missing")


def test_link_ends_with_its_time(linked: Linked) -> None:
    linked.maker.put(f"/buckets/{BUCKET}/objects/{'a'}", content=CONTENT).raise_for_status()
    url = linked.link("GET", key="a", expires_seconds=100)["url"]
    linked.clock.offset = 95
    assert linked.send(url).content == CONTENT
    linked.clock.offset = 101
    assert refused(linked.send(url), 403, "link_expired")
    longest = linked.link("GET", key="a", expires_seconds=7 * 86_400)["url"]
    linked.clock.offset += 7 * 86_400 - 5
    assert linked.send(longest).content == CONTENT
    for seconds in (0, -1, 7 * 86_400 + 1):
        order = {"method": "GET", "key": "a", "expires_seconds": seconds}
        assert linked.maker.post(f"/buckets/{BUCKET}/links", json=order).status_code == 422


@pytest.mark.databases("sqlite", "mariadb")
def test_link_ends_with_its_key(linked: Linked) -> None:
    stack = linked.stack
    linked.maker.put(f"/buckets/{BUCKET}/objects/a", content=CONTENT).raise_for_status()
    url = linked.link("GET", key="a")["url"]
    assert linked.send(url).content == CONTENT
    key_id = dict(parse_qsl(url.partition("?")[2]))["blox-key"]
    with stack.client("admin") as admin:
        admin.delete(f"/tenants/{TENANT}/keys/{key_id}").raise_for_status()
    assert refused(linked.send(url), 401, "key_revoked")
    # Whoever has no such link does not learn that there was a key.
    forged = changed(url, "blox-signature", "0" * 64)
    assert refused(linked.send(forged), 403, "link_signature")


def test_link_does_no_more_than_its_key_may(linked: Linked) -> None:
    stack = linked.stack
    with stack.client("objects:read") as reader, stack.client(tenant=OTHER) as other:
        order = {"method": "PUT", "key": "a"}
        made = reader.post(f"/buckets/{BUCKET}/links", json=order)
        assert refused(made, 403, "scope_missing")
        # The other tenant has a bucket of that name too: its link opens that one.
        other.put(f"/buckets/{BUCKET}/objects/a", content=b"theirs").raise_for_status()
        linked.maker.put(f"/buckets/{BUCKET}/objects/a", content=CONTENT).raise_for_status()
        order = {"method": "GET", "key": "a"}
        theirs = other.post(f"/buckets/{BUCKET}/links", json=order).json()["url"]
        assert linked.send(theirs).content == b"theirs"
        missing = other.post("/buckets/unknown/links", json=order)
        assert refused(missing, 404, "bucket_not_found")


def test_terms_that_cannot_be_meant_are_refused(linked: Linked) -> None:
    for order in (
        {"method": "DELETE", "key": "a"},
        {"method": "GET", "key": "a", "max_bytes": 5},
        {"method": "PUT", "key": "a", "sha256": "abc"},
        {"method": "PUT", "key": "a", "max_bytes": -1},
    ):
        assert linked.maker.post(f"/buckets/{BUCKET}/links", json=order).status_code == 422
    bad = linked.maker.post(f"/buckets/{BUCKET}/links", json={"method": "GET", "key": "../a"})
    assert refused(bad, 400, "key_invalid")


def test_parts_are_put_with_links(linked: Linked) -> None:
    maker = linked.maker
    order = {"operation_id": "op-1", "bucket": BUCKET, "key": "whole"}
    upload = maker.post("/uploads", json=order)
    assert upload.status_code in (200, 201), upload.text
    upload_id = upload.json()["id"]
    terms = {"part": 1, "max_bytes": 100, "sha256": SHA256}
    link = maker.post(f"/uploads/{upload_id}/links", json=terms).json()["url"]
    put = linked.send(link, "PUT", content=CONTENT)
    assert put.status_code == 200, put.text
    moved = linked.send(link.replace("/parts/1", "/parts/2", 1), "PUT", content=CONTENT)
    assert refused(moved, 403, "link_signature")
    wrong = linked.send(link, "PUT", content=bytes(14))
    assert refused(wrong, 400, "sha256_mismatch")
    with linked.stack.client(tenant=OTHER) as other:
        assert other.post(f"/uploads/{upload_id}/links", json=terms).status_code == 404
