"""Keys that a bucket fetches, in the running product: also when the worker dies half-way."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.acceptance.product import PATIENCE, Product, Tenant, object_path, random_bytes
from tests.support.eventually import eventually
from tests.support.upstream import Asked, Upstream, answer, ranged

MIB = 1024 * 1024
#: More than one stretch that is kept.
LARGE_MIB, FIRST_MIB = 72, 66


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as server:
        yield server


def test_what_is_asked_for_is_fetched_once_and_lies_on_the_channel(
    product: Product, tenant: Tenant, upstream: Upstream
) -> None:
    content = random_bytes(100_000)
    upstream.routes["/base/ordner/gr%C3%B6%C3%9Fe%201.bin"] = answer(content)
    rule = {"prefix": "from/", "sources": [{"url": f"{upstream.url}/base/{{rest}}"}]}
    tenant.bucket("mirror", origin={"rules": [{**rule, "wait_seconds": 30}]})
    path = "mirror/from/ordner/größe 1.bin"
    assert tenant.get(path).content == content
    eventually(lambda: tenant.state(path) == "stored", PATIENCE)
    (physical,) = product.keys_on("main", tenant)
    assert product.content("main", physical) == content
    assert len(upstream.asked) == 1
    assert tenant.get("mirror/elsewhere").status_code == 404
    assert tenant.get("mirror/from/missing").status_code == 404


@pytest.mark.timeout(300)
def test_a_worker_that_is_killed_half_way_goes_on_behind_what_has_come(
    product: Product, tenant: Tenant, upstream: Upstream
) -> None:
    block = random_bytes(MIB)
    content = block * LARGE_MIB
    again = ranged(content)

    def stalling(connection: socket.socket, asked: Asked) -> None:
        if "range" in asked.headers:
            again(connection, asked)
            return
        head = f'HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\nETag: "v1"\r\n\r\n'
        connection.sendall(head.encode())
        for _ in range(FIRST_MIB):
            connection.sendall(block)
        upstream.stopped(PATIENCE)

    upstream.routes["/large"] = stalling
    short = {"BLOX_OUTBOX__LEASE_SECONDS": "4", "BLOX_OUTBOX__RENEW_SECONDS": "1"}
    product.stack.stop_process("origin")
    product.stack.set_variables("origin", short)
    product.stack.start_process("origin")
    tenant.bucket("mirror", origin={"rules": [{"sources": [{"url": upstream.url}]}]})
    begun = tenant.http.post("/buckets/mirror/origin-pulls", json={"key": "large"}).json()
    with product.engine.connect() as connection:
        count = sa.text("SELECT COUNT(*) FROM origin_segments WHERE pull_id = :id")

        def kept() -> bool:
            connection.rollback()
            return bool(connection.execute(count, {"id": begun["id"]}).scalar_one())

        eventually(kept, PATIENCE)
    product.stack.kill("origin")
    task = tenant.ended(begun["task_id"])
    assert task["state"] == "completed", task
    assert [one.path for one in upstream.asked] == ["/large"] * 2
    assert upstream.asked[1].headers["range"].startswith("bytes=6")
    head = tenant.http.head(object_path("mirror/large"))
    assert head.headers["x-blox-sha256"] == hashlib.sha256(content).hexdigest()


def test_a_put_during_the_fetch_wins(product: Product, tenant: Tenant, upstream: Upstream) -> None:
    go_on, begun = threading.Event(), threading.Event()

    def slow(connection: socket.socket, asked: Asked) -> None:
        begun.set()
        go_on.wait(PATIENCE)
        answer(b"from far away")(connection, asked)

    upstream.routes["/a"] = slow
    tenant.bucket("mirror", origin={"rules": [{"sources": [{"url": upstream.url}]}]})
    pull = tenant.http.post("/buckets/mirror/origin-pulls", json={"key": "a"}).json()
    assert begun.wait(PATIENCE)
    tenant.put("mirror/a", b"the user's")
    go_on.set()
    assert tenant.ended(pull["task_id"])["result"]["outcome"] == "lost"
    assert tenant.get("mirror/a").content == b"the user's"
    shown = tenant.http.get(f"/buckets/mirror/origin-pulls/{pull['id']}").json()
    assert (shown["state"], shown["error_code"]) == ("lost", "key_written")
