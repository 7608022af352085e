"""What an origin may answer, and hosts that are dead, slow or forbidden."""

from __future__ import annotations

import dataclasses
import gzip
import socket
import threading
from collections.abc import Callable

import pytest
from sqlalchemy.orm import Session

from shared.catalog.models import Bucket
from shared.catalog.origins.policy import StoredOrigin
from shared.catalog.origins.pulling import NothingToPull, Pulling
from shared.core.errors import CancelRequested, ShuttingDown
from shared.fetch import Fetcher, FetchPolicy, parse_url
from shared.outbox.manual import retry
from shared.storage.errors import ChannelFull
from tests.support.origins import OriginStand
from tests.support.outbox import Thread
from tests.support.upstream import Asked, Upstream, answer, redirect

BODY = b"from far away"

#: What is different on a server is in the file on crashes.
pytestmark = pytest.mark.databases("sqlite")


def test_a_rule_kept_with_a_header_that_cannot_be_sent_fails_at_once(
    stand: OriginStand, upstream: Upstream
) -> None:
    """Rules that were saved when such headers were taken."""
    bucket = stand.bucket()
    stand.fills(bucket, upstream.url, headers={"x-a": "plain"})

    def write(session: Session) -> None:
        row = session.get_one(Bucket, bucket)
        stored = StoredOrigin.model_validate(row.origin)
        (kept,) = stored.rules
        sealed = stand.secrets.seal({"x-a": "caf\xe9"})
        source = kept.sources[0].model_copy(update={"sealed": sealed})
        rule = kept.model_copy(update={"sources": (source,)})
        row.origin = StoredOrigin(rules=(rule,)).model_dump(mode="json")

    stand.db.run_session(write)
    upstream.routes["/k"] = answer(BODY)
    pulling = stand.trigger(bucket, "k")
    assert stand.work(pulling.task_id) == "failed"
    pull = stand.pull_row(pulling.pull_id)
    assert (pull.state, pull.error_code) == ("failed", "origins_spent")
    assert "printable ASCII" in stand.task(pulling.task_id)["error_detail"]
    assert upstream.count("/k") == 0


def test_what_will_not_change_fails_at_once_and_is_remembered(
    stand: OriginStand, upstream: Upstream
) -> None:
    bucket = stand.bucket()
    stand.fills(bucket, upstream.url, f"{upstream.url}/second")
    for status, code, remembered in (
        ("404 Not Found", "origin_missing", 60),
        ("410 Gone", "origin_missing", 60),
        ("401 Unauthorized", "origin_denied", 10),
        ("403 Forbidden", "origin_denied", 10),
        ("400 Bad Request", "origin_status", 10),
        ("204 No Content", "origin_status", 10),
        ("206 Partial Content", "origin_status", 10),
        ("304 Not Modified", "origin_status", 10),
        ("418 I'm a teapot", "origin_status", 10),
    ):
        key = status[:3]
        upstream.routes[f"/{key}"] = answer(b"", status=status)
        upstream.routes[f"/second/{key}"] = answer(BODY)
        pulling = stand.trigger(bucket, key)
        assert stand.work(pulling.task_id) == "failed"
        pull = stand.pull_row(pulling.pull_id)
        assert (pull.state, pull.error_code) == ("failed", code)
        assert (upstream.count(f"/{key}"), upstream.count(f"/second/{key}")) == (1, 0)
        miss = stand.miss(bucket, key)
        assert miss is not None
        assert pull.ended_at is not None
        seconds = (miss.expires_at - pull.ended_at).total_seconds()
        assert seconds == pytest.approx(remembered, abs=3)
        assert stand.begin(bucket, key) == NothingToPull("missed")
        assert isinstance(stand.begin(bucket, key, asked=True), Pulling)
        assert ("alarm" in stand.event_types(pulling.task_id)) == (code == "origin_denied")
    assert stand.versions() == []


def test_the_next_source_is_asked_at_once_when_one_is_not_well(
    stand: OriginStand, upstream: Upstream
) -> None:
    bucket = stand.bucket()
    stand.fills(bucket, upstream.url, f"{upstream.url}/second")
    for status in ("500 Oops", "503 Later", "429 Slow Down"):
        key = status[:3]
        upstream.routes[f"/{key}"] = answer(b"", status=status)
        upstream.routes[f"/second/{key}"] = answer(BODY)
        pulling = stand.trigger(bucket, key)
        assert stand.work(pulling.task_id) == "completed"
        assert stand.task(pulling.task_id)["checkpoint"]["tries"] == {"0": 1, "1": 1}
        assert "origin_failed" in stand.event_types(pulling.task_id)


def test_tries_are_counted_and_then_it_has_failed(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    upstream.routes["/base/a"] = answer(b"", status="500 Oops")
    pulling = stand.trigger(bucket, "a")
    assert stand.work(pulling.task_id) == "scheduled"
    assert stand.task(pulling.task_id)["attempt"] == 1
    assert stand.work(pulling.task_id) == "failed"
    assert stand.task(pulling.task_id)["error_code"] == "origins_spent"
    assert upstream.count("/base/a") == 2
    assert stand.begin(bucket, "a") == NothingToPull("missed")

    upstream.routes["/base/a"] = answer(BODY)
    assert pulling.task_id is not None
    retry(stand.bench.context, pulling.task_id, by="operator", reason="mended")
    assert stand.pull_row(pulling.pull_id).state == "open"
    assert stand.work(pulling.task_id) == "completed"
    assert stand.pull_row(pulling.pull_id).state == "stored"
    assert stand.miss(bucket, "a") is None


def test_patience_that_is_asked_for_is_had_and_capped(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    upstream.routes["/base/a"] = answer(b"", status="429 Slow Down", Retry_After="120")
    upstream.routes["/base/b"] = answer(b"", status="503 Later", Retry_After="999999")
    for key, seconds in (("a", 120), ("b", 900)):
        pulling = stand.trigger(bucket, key)
        assert stand.work(pulling.task_id) == "scheduled"
        row = stand.task(pulling.task_id)
        waits = (row["due_at"] - row["created_at"]).total_seconds()
        assert waits == pytest.approx(seconds, abs=10)


def test_packed_content_is_refused_and_never_unpacked(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    bomb = gzip.compress(bytes(5_000_000))
    upstream.routes["/base/a"] = answer(bomb, Content_Encoding="gzip")
    pulling = stand.trigger(bucket, "a")
    assert stand.work(pulling.task_id) == "failed"
    assert stand.task(pulling.task_id)["error_code"] == "origin_encoding"
    assert stand.versions() == []
    assert stand.staged_keys() == set()


def test_more_than_the_rule_or_the_bucket_takes_fails(
    stand: OriginStand, upstream: Upstream
) -> None:
    bucket = stand.bucket()
    stand.fills(bucket, upstream.url, max_bytes=10)
    upstream.routes["/a"] = answer(b"x" * 11)
    upstream.routes["/b"] = raw(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 11)
    upstream.routes["/c"] = answer(b"x" * 10)
    for key, state in (("a", "failed"), ("b", "failed"), ("c", "completed")):
        pulling = stand.trigger(bucket, key)
        assert stand.work(pulling.task_id) == state
    assert len(stand.versions()) == 1
    assert len(stand.staged_keys()) == 1


def test_a_body_that_is_not_as_long_as_announced_is_not_stored(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    upstream.routes["/base/short"] = answer(b"12345", announced=10)
    upstream.routes["/base/long"] = answer(b"1234567890", announced=5)
    for key in ("short", "long"):
        assert stand.work(stand.trigger(bucket, key).task_id) == "scheduled"
    assert stand.versions() == []
    assert stand.staged_keys() == set()


def test_an_address_that_is_not_allowed_is_refused_when_it_is_used(
    stand: OriginStand, upstream: Upstream
) -> None:
    bucket = stand.bucket()
    stand.fills(bucket, "http://rebound.example/", f"{upstream.url}/second")
    policy = FetchPolicy(allow=[f"127.0.0.1:{upstream.port}"])
    fetcher = Fetcher(policy, resolver=lambda host: ["1.1.1.1", "10.0.0.1"])
    stand.origin = dataclasses.replace(stand.origin, fetcher=fetcher)
    upstream.routes["/second/a"] = answer(BODY)
    pulling = stand.trigger(bucket, "a")
    assert stand.work(pulling.task_id) == "completed"
    assert stand.task(pulling.task_id)["checkpoint"]["barred"] == [0]
    assert "alarm" in stand.event_types(pulling.task_id)


def test_a_redirect_into_the_network_is_refused(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    upstream.routes["/base/a"] = redirect("http://169.254.169.254/latest/meta-data/")
    upstream.routes["/base/b"] = redirect("http://[::ffff:10.0.0.1]/")
    for key in ("a", "b"):
        pulling = stand.trigger(bucket, key)
        assert stand.work(pulling.task_id) == "failed"
        assert stand.pull_row(pulling.pull_id).error_code == "origins_spent"


def test_headers_are_sent_and_kept_sealed(stand: OriginStand, upstream: Upstream) -> None:
    bucket = stand.bucket()
    stand.fills(bucket, upstream.url, headers={"Authorization": "Bearer s3cret"})
    upstream.routes["/a"] = answer(BODY)
    assert stand.work(stand.trigger(bucket, "a").task_id) == "completed"
    assert upstream.asked[0].headers["authorization"] == "Bearer s3cret"
    stand.fills(bucket, upstream.url)
    upstream.routes["/b"] = answer(BODY)
    assert stand.work(stand.trigger(bucket, "b").task_id) == "completed"
    assert upstream.asked[1].headers["authorization"] == "Bearer s3cret"


def test_a_dead_host_is_left_alone_and_holds_up_nobody(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    dead = stand.bucket("dead")
    with Upstream() as gone:
        stand.fills(dead, gone.url, tries=9)
    first = stand.trigger(dead, "a")
    assert stand.work(first.task_id) == "scheduled"
    assert stand.work(first.task_id) == "scheduled"
    # The third failure opens the breaker: no attempt is used up by waiting for it.
    assert stand.work(first.task_id) == "blocked"
    resource = f"origin:{dead}:http://127.0.0.1:{gone.port}"
    row = stand.task(first.task_id)
    assert (row["attempt"], row["resource_key"]) == (2, resource)
    second = stand.trigger(dead, "b")
    assert stand.work(second.task_id) == "blocked"
    row = stand.task(second.task_id)
    assert (row["attempt"], row["checkpoint"], row["resource_key"]) == (0, None, resource)

    upstream.routes["/base/a"] = answer(BODY)
    assert stand.work(stand.trigger(bucket, "a").task_id) == "completed"


def test_a_slow_host_has_so_many_at_a_time(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    stand.hosts._take(bucket, parse_url(upstream.url)).running = 4
    pulling = stand.trigger(bucket, "a")
    assert stand.work(pulling.task_id) == "blocked"
    assert stand.task(pulling.task_id)["attempt"] == 0
    assert upstream.asked == []


def test_a_full_staging_counts_nothing(
    stand: OriginStand, upstream: Upstream, bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**facts: object) -> None:
        raise ChannelFull("staging is full")

    monkeypatch.setattr(stand.staging, "writer", full)
    upstream.routes["/base/a"] = answer(BODY)
    pulling = stand.trigger(bucket, "a")
    assert stand.work(pulling.task_id) == "scheduled"
    row = stand.task(pulling.task_id)
    assert (row["attempt"], row["checkpoint"]["tries"]) == (0, {"0": 0})
    monkeypatch.undo()
    assert stand.work(pulling.task_id) == "completed"


@pytest.mark.parametrize("reason", [CancelRequested("a user"), ShuttingDown("the pod goes")])
def test_a_fetch_under_way_is_stopped(
    stand: OriginStand, upstream: Upstream, bucket: int, reason: CancelRequested | ShuttingDown
) -> None:
    begun = threading.Event()

    def stalls(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
        begun.set()
        upstream.stopped(10)

    upstream.routes["/base/a"] = stalls
    pulling = stand.trigger(bucket, "a")
    execution = stand.claim(pulling.task_id)
    worker = Thread(lambda: stand.run(execution))
    assert begun.wait(10)
    execution.stop(reason)
    worker.join_answer()
    is_cancel = isinstance(reason, CancelRequested)
    assert stand.state(pulling.task_id) in (("cancelled",) if is_cancel else ("pending",))
    assert stand.pull_row(pulling.pull_id).state == ("cancelled" if is_cancel else "open")
    assert stand.staged_keys() == set()


def raw(data: bytes) -> Callable[[socket.socket, Asked], None]:
    def script(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(data)

    return script
