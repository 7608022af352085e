"""Objects that are not there yet: what a GET does, by the bucket's rule."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.api.pulling import pulling_worker
from tests.integration.api.stack import BUCKET, CHANNEL, Stack, running_stack
from tests.support.eventually import eventually
from tests.support.upstream import Asked, Upstream, answer

pytestmark = pytest.mark.databases("mariadb")

BODY = b"0123456789" * 100


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as server:
        yield server


@pytest.fixture
def worker(stack: Stack, redis_url: str, namespace: str) -> Iterator[object]:
    with pulling_worker(stack, redis_url, namespace) as outbox:
        yield outbox


def put_rules(client: httpx.Client, *rules: dict[str, Any]) -> httpx.Response:
    return client.put(
        f"/buckets/{BUCKET}", json={"channels": [CHANNEL], "origin": {"rules": rules}}
    )


def rule(upstream: Upstream, **terms: Any) -> dict[str, Any]:
    return {"sources": [{"url": upstream.url}], **terms}


def url(key: str) -> str:
    return f"/buckets/{BUCKET}/objects/{key}"


def test_get_head_and_ranges_wait_for_what_is_fetched(
    stack: Stack, worker: object, upstream: Upstream
) -> None:
    upstream.routes["/a/b.css"] = answer(BODY, Content_Type="text/css")
    upstream.routes["/head"] = upstream.routes["/range"] = answer(BODY)
    with stack.client() as client:
        assert put_rules(client, rule(upstream)).status_code == 200
        got = client.get(url("a/b.css"))
        assert (got.status_code, got.content) == (200, BODY)
        assert got.headers["content-type"] == "text/css"
        assert got.headers["x-blox-state"] == "pending"
        head = client.head(url("head"))
        assert (head.status_code, head.headers["content-length"]) == (200, str(len(BODY)))
        part = client.get(url("range"), headers={"range": "bytes=5-9"})
        assert (part.status_code, part.content) == (206, b"56789")
        assert "range" not in upstream.asked[-1].headers
        assert client.get(url("range")).content == BODY
        assert [one.path for one in upstream.asked] == ["/a/b.css", "/head", "/range"]
        assert client.get(url("missing")).status_code == 404
        assert client.get(url("missing")).status_code == 404
        assert client.head(url("missing")).status_code == 404
        assert upstream.count("/missing") == 1


def test_a_wait_is_bounded_and_nobody_holds_a_thread(
    stack: Stack, worker: object, upstream: Upstream
) -> None:
    go_on = threading.Event()

    def slow(connection: socket.socket, asked: Asked) -> None:
        go_on.wait(20)
        answer(BODY)(connection, asked)

    upstream.routes["/slow"] = slow
    with stack.client() as client, ThreadPoolExecutor(30) as pool:
        put_rules(client, rule(upstream, wait_seconds=0.5))
        refused = client.get(url("slow"))
        assert refused.status_code == 503
        assert refused.json()["code"] == "origin_pending"
        assert int(refused.headers["retry-after"]) >= 1
        put_rules(client, rule(upstream, wait_seconds=20))
        waiting = [pool.submit(client.get, url("slow")) for _ in range(30)]
        # More wait than the process has threads, and others are answered meanwhile.
        assert client.get("/buckets").status_code == 200
        go_on.set()
        assert {one.result(20).content for one in waiting} == {BODY}
    assert upstream.count("/slow") == 1


def test_only_so_many_wait(
    blox_url: str, redis_url: str, namespace: str, tmp_path: Path, upstream: Upstream
) -> None:
    with (
        running_stack(blox_url, redis_url, namespace, tmp_path, max_origin_waiters=0) as stack,
        stack.client() as client,
    ):
        put_rules(client, rule(upstream, wait_seconds=20))
        began = time.monotonic()
        assert client.get(url("a")).status_code == 503
        assert time.monotonic() - began < 10
        assert stack.count("origin_pulls") == 1


def test_fifty_gets_over_two_nodes_make_one_request(
    stack: Stack,
    worker: object,
    upstream: Upstream,
    blox_url: str,
    redis_url: str,
    namespace: str,
    tmp_path: Path,
) -> None:
    go_on = threading.Event()

    def slow(connection: socket.socket, asked: Asked) -> None:
        go_on.wait(20)
        answer(BODY)(connection, asked)

    upstream.routes["/one"] = slow
    with (
        running_stack(blox_url, redis_url, namespace, tmp_path) as second,
        stack.client() as first_client,
        second.client() as second_client,
        ThreadPoolExecutor(50) as pool,
    ):
        put_rules(first_client, rule(upstream, wait_seconds=30))
        clients = [first_client, second_client] * 25
        waiting = [pool.submit(client.get, url("one")) for client in clients]
        eventually(lambda: upstream.asked)
        go_on.set()
        answers = [one.result(30) for one in waiting]
    assert {(one.status_code, one.content) for one in answers} == {(200, BODY)}
    assert upstream.count("/one") == 1
    assert stack.count("origin_pulls") == 1


def test_redirect_and_background(stack: Stack, worker: object, upstream: Upstream) -> None:
    upstream.routes["/r/a%20b"] = upstream.routes["/b/c"] = answer(BODY)
    with stack.client() as client:
        put_rules(
            client,
            rule(upstream, prefix="r/", mode="redirect"),
            rule(upstream, prefix="b/", mode="background"),
            {
                "prefix": "å/",
                "mode": "redirect",
                "sources": [{"url": upstream.url + "/日本%20é/{rest}?q={key}&x=ł"}],
            },
        )
        sent = client.get(url("å/ü%20ł"), follow_redirects=False)
        assert sent.status_code == 302
        assert sent.headers["location"] == (
            f"{upstream.url}/%E6%97%A5%E6%9C%AC%20%C3%A9/%C3%BC%20%C5%82"
            "?q=%C3%A5%2F%C3%BC%20%C5%82&x=%C5%82"
        )
        sent = client.get(url("r/a%20b"), follow_redirects=False)
        assert sent.status_code == 302
        assert sent.headers["location"] == f"{upstream.url}/r/a%20b"
        assert sent.headers["cache-control"] == "no-store"
        assert client.get(url("b/c")).status_code == 404
        assert client.get(url("other")).status_code == 404
        for key in ("r/a%20b", "b/c"):
            eventually(lambda key=key: client.get(url(key)).status_code == 200)
            assert client.get(url(key)).content == BODY
    assert upstream.count("/r/a%20b") == upstream.count("/b/c") == 1
    assert upstream.count("/other") == 0


def test_a_pull_is_asked_for_and_shown(stack: Stack, worker: object, upstream: Upstream) -> None:
    pulls = f"/buckets/{BUCKET}/origin-pulls"
    with stack.client() as client:
        assert client.post(pulls, json={"key": "a"}).json()["code"] == "origin_no_rule"
        put_rules(client, rule(upstream))
        assert client.get(url("a")).status_code == 404
        upstream.routes["/a"] = answer(BODY)
        # What was missed is asked for again.
        begun = client.post(pulls, json={"key": "a"}, headers={"idempotency-key": "1"})
        assert (begun.status_code, begun.json()["state"]) == (202, "open")
        again = client.post(pulls, json={"key": "a"}, headers={"idempotency-key": "1"})
        assert again.json() == begun.json()
        shown = f"{pulls}/{begun.json()['id']}"
        eventually(lambda: client.get(shown).json()["state"] == "stored")
        pull = client.get(shown).json()
        assert (pull["received_bytes"], pull["error_code"]) == (len(BODY), None)
        assert client.get(url("a")).content == BODY
        refused = client.post(pulls, json={"key": "a"})
        assert (refused.status_code, refused.json()["code"]) == (409, "object_exists")
        assert client.get(f"{pulls}/{2**64}").status_code == 404
        assert client.post(pulls, json={"key": "a/../b"}).json()["code"] == "key_invalid"
    with stack.client(tenant="umbrella") as other:
        assert other.get(shown).status_code == 404
    with stack.client("objects:read") as reader:
        assert reader.post(pulls, json={"key": "b"}).status_code == 403
        assert reader.get(url("b")).status_code == 404


def test_rules_are_vetted_and_headers_are_not_shown(stack: Stack, upstream: Upstream) -> None:
    with stack.client() as client:
        for bad in (
            "http://10.0.0.1/", "http://169.254.169.254/", "http://[::ffff:10.0.0.1]/",
            "http://1.1.1.1:22/",
        ):  # fmt: skip
            refused = put_rules(client, {"sources": [{"url": bad}]})
            assert (refused.status_code, refused.json()["code"]) == (400, "origin_refused")
        for bad in (
            "ftp://a.example/", "http://u:p@a.example/", "http://0x7f.1/", "http://{key}.example/",
            "http://a.example/#x", "http://bücher.example/",
        ):  # fmt: skip
            assert put_rules(client, {"sources": [{"url": bad}]}).status_code == 422
        for headers in ({"Host": "x"}, {"X": "a\r\nb"}, {"Range": "bytes=0-"}, {"X": "é"}):
            bad_rule = {"sources": [{"url": upstream.url, "headers": headers}]}
            assert put_rules(client, bad_rule).status_code == 422
        assert put_rules(client).status_code == 422
        assert client.get(f"/buckets/{BUCKET}").json()["origin"] is None

        source = {"url": upstream.url, "headers": {"Authorization": "Bearer s3cret"}}
        put = put_rules(client, {"sources": [source]})
        assert put.status_code == 200
        (shown,) = put.json()["origin"]["rules"]
        assert shown["sources"] == [{"url": upstream.url, "header_names": ["authorization"]}]
        assert "s3cret" not in put.text
    with stack.engine.connect() as connection:
        kept = connection.exec_driver_sql("SELECT origin FROM buckets WHERE id = 1").scalar_one()
    assert "s3cret" not in str(kept)


def test_switched_off_it_answers_501_and_gets_are_plain(
    blox_url: str, redis_url: str, namespace: str, tmp_path: Path, upstream: Upstream
) -> None:
    with (
        running_stack(
            blox_url, redis_url, namespace, tmp_path, switched_off=frozenset({"origin"})
        ) as stack,
        stack.client() as client,
    ):
        put_rules(client, rule(upstream))
        assert client.get(url("a")).status_code == 404
        refused = client.post(f"/buckets/{BUCKET}/origin-pulls", json={"key": "a"})
        assert (refused.status_code, refused.json()["code"]) == (501, "switched_off")
        assert stack.count("origin_pulls") == stack.count("tasks") == 0


def test_a_link_is_enough_to_have_it_fetched(
    stack: Stack, worker: object, upstream: Upstream
) -> None:
    upstream.routes["/a"] = answer(BODY)
    with stack.client() as client:
        put_rules(client, rule(upstream))
        made = client.post(f"/buckets/{BUCKET}/links", json={"method": "GET", "key": "a"})
    assert httpx.get(made.json()["url"], timeout=30).content == BODY


def test_a_dead_origin_holds_up_no_other_bucket(
    stack: Stack, worker: object, upstream: Upstream
) -> None:
    def silent(connection: socket.socket, asked: Asked) -> None:
        dead.stopped(60)

    upstream.routes["/a"] = answer(BODY)
    with Upstream() as dead, stack.client() as client:
        dead.routes = {f"/{number}": silent for number in range(20)}
        stack.make_bucket("dead", origin={"rules": [rule(dead, mode="background")]})
        put_rules(client, rule(upstream, wait_seconds=30))
        for number in range(20):
            assert client.get(f"/buckets/dead/objects/{number}").status_code == 404
        eventually(lambda: len(dead.asked) == 2)
        eventually(lambda: parked(stack) == 18)
        began = time.monotonic()
        assert client.get(url("a")).content == BODY
        # The silence of the other one lasts for 30 seconds.
        assert time.monotonic() - began < 15
        assert len(dead.asked) == 2


def test_a_host_has_so_many_pulls_at_a_time_over_all_workers(
    stack: Stack, upstream: Upstream, redis_url: str, namespace: str
) -> None:
    inside: list[int] = []
    most: list[int] = []

    def counting(connection: socket.socket, asked: Asked) -> None:
        inside.append(1)
        most.append(len(inside))
        upstream.stopped(0.1)
        inside.pop()
        answer(BODY)(connection, asked)

    keys = [f"k{number}" for number in range(8)]
    upstream.routes = {f"/{key}": counting for key in keys}
    with (
        pulling_worker(stack, redis_url, namespace, max_running=1),
        pulling_worker(stack, redis_url, namespace, max_running=1),
        stack.client() as client,
    ):
        put_rules(client, rule(upstream, mode="background"))
        for key in keys:
            assert client.get(url(key)).status_code == 404
        for key in keys:
            eventually(lambda key=key: client.get(url(key)).status_code == 200, 30)
    assert max(most) == 1
    assert len(most) == len(keys)


def parked(stack: Stack) -> int:
    with stack.engine.connect() as connection:
        counted = (
            "SELECT COUNT(*) FROM tasks WHERE state = 'blocked' AND resource_key LIKE 'origin:%%'"
        )
        return int(connection.exec_driver_sql(counted).scalar_one())
