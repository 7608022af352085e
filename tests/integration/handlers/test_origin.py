"""The origin protocol: what comes is stored as a PUT would be, and only an absent key is filled."""

from __future__ import annotations

import dataclasses
import datetime as dt
import gzip
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import OriginMiss, OriginPull
from shared.catalog.origins.pulling import NothingToPull, Pulling
from shared.catalog.origins.segments import Segment, add_segment
from shared.core.clock import Deadline, utc_now
from shared.core.errors import CancelRequested, ShuttingDown
from shared.fetch import Fetcher, FetchPolicy, parse_url
from shared.outbox.manual import retry
from shared.storage.errors import ChannelFull
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.origins import SEGMENT_BYTES, OriginStand
from tests.support.outbox import Thread
from tests.support.upstream import Asked, Upstream, answer, ranged, redirect

BODY = b"from far away"
LARGE = os.urandom(SEGMENT_BYTES * 3 + 1000)
ETAG = '"v1"'

#: What is different on a server is in the files on races and crashes.
pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def stand(blox_url: str, tmp_path: Path) -> Iterator[OriginStand]:
    made = OriginStand(blox_url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as server:
        yield server


@pytest.fixture
def bucket(stand: OriginStand, upstream: Upstream) -> int:
    bucket_id = stand.bucket()
    stand.fills(bucket_id, f"{upstream.url}/base", tries=2)
    return bucket_id


def test_what_comes_becomes_a_version_and_is_uploaded(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    upstream.routes["/base/a/b%20c.txt"] = answer(BODY, Content_Type="text/css", ETag=ETAG)
    pulling = stand.trigger(bucket, "a/b c.txt")
    assert stand.work(pulling.task_id) == "completed"

    pull = stand.pull_row(pulling.pull_id)
    assert (pull.state, pull.received_bytes) == ("stored", len(BODY))
    assert pull.hops == {"hops": [["127.0.0.1", upstream.port, "127.0.0.1"]]}
    (version,) = stand.versions()
    assert (version.id, version.state, version.generation) == (pull.version_id, "pending", 1)
    assert version.content_type == "text/css"
    assert stand.task(pulling.task_id)["result"]["outcome"] == "stored"
    assert stand.work(version.task_id) == "completed"
    assert stand.stored_bytes(version.id) == BODY
    (asked,) = upstream.asked
    assert asked.headers["accept-encoding"] == "identity"
    assert "range" not in asked.headers


def test_one_pull_is_open_per_key_and_rule(stand: OriginStand, bucket: int) -> None:
    first = stand.begin(bucket, "a")
    second = stand.begin(bucket, "a")
    other = stand.begin(bucket, "b")
    assert isinstance(first, Pulling)
    assert isinstance(second, Pulling)
    assert isinstance(other, Pulling)
    assert (first.created, second.created, other.created) == (True, False, True)
    assert (second.pull_id, second.task_id) == (first.pull_id, first.task_id)


# -- who has won -------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["put", "put and delete"])
def test_a_user_who_writes_during_the_fetch_has_won(
    stand: OriginStand, upstream: Upstream, bucket: int, act: str
) -> None:
    written: list[int] = []
    named: set[str | None] = set()

    def meanwhile(connection: socket.socket, asked: Asked) -> None:
        written.append(stand.put(bucket, "a", b"the user's").version_id)
        named.add(stand.version(written[0]).staging_key)
        if act == "put and delete":
            stand.remove(bucket, "a")
        answer(BODY)(connection, asked)

    upstream.routes["/base/a"] = meanwhile
    pulling = stand.trigger(bucket, "a")
    assert stand.work(pulling.task_id) == "completed"
    pull = stand.pull_row(pulling.pull_id)
    assert (pull.state, pull.error_code, pull.version_id) == ("lost", "key_written", None)
    (version,) = stand.versions()
    assert [version.id] == written
    assert version.state == ("pending" if act == "put" else "deleted")
    assert staged_keys(stand) == named


def test_a_key_written_before_the_fetch_is_not_asked_for(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    pulling = stand.trigger(bucket, "a")
    stand.put(bucket, "a", b"the user's")
    assert stand.work(pulling.task_id) == "completed"
    assert stand.pull_row(pulling.pull_id).state == "lost"
    assert upstream.asked == []


def test_what_is_there_or_in_review_is_not_pulled(stand: OriginStand, upstream: Upstream) -> None:
    bucket = stand.bucket(reject_keywords=["bad"])
    stand.fills(bucket, upstream.url)
    put = stand.put(bucket, "a", b"something")
    assert stand.begin(bucket, "a") == NothingToPull("reviewing")
    stand.work(put.task_id)
    assert stand.begin(bucket, "a") == NothingToPull("present")


def test_a_reviewed_bucket_reviews_what_comes_and_does_not_ask_again_for_what_it_rejected(
    stand: OriginStand, upstream: Upstream
) -> None:
    bucket = stand.bucket(reject_keywords=["bad"])
    stand.fills(bucket, upstream.url)
    upstream.routes["/a"] = answer(b"something bad", Content_Type="text/plain")
    stand.work(stand.trigger(bucket, "a").task_id)
    (version,) = stand.versions()
    assert version.state == "reviewing"
    stand.work(version.task_id)
    assert stand.version(version.id).state == "blocked"
    assert stand.begin(bucket, "a") == NothingToPull("blocked")
    assert isinstance(stand.begin(bucket, "a", asked=True), Pulling)


def test_a_deleted_key_is_pulled_again_at_its_new_generation(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    upstream.routes["/base/a"] = answer(BODY)
    stand.work(stand.trigger(bucket, "a").task_id)
    stand.remove(bucket, "a")
    assert stand.work(stand.trigger(bucket, "a").task_id) == "completed"
    assert [one.state for one in stand.versions()] == ["deleted", "pending"]


def test_a_rule_that_changed_ends_the_pull(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    pulling = stand.trigger(bucket, "a")
    stand.fills(bucket, f"{upstream.url}/other")
    assert stand.work(pulling.task_id) == "cancelled"
    assert stand.pull_row(pulling.pull_id).state == "cancelled"
    assert upstream.asked == []
    assert stand.trigger(bucket, "a").created


# -- answers -----------------------------------------------------------------------------------


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
    assert staged_keys(stand) == set()


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
    assert len(staged_keys(stand)) == 1


def test_a_body_that_is_not_as_long_as_announced_is_not_stored(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    upstream.routes["/base/short"] = answer(b"12345", announced=10)
    upstream.routes["/base/long"] = answer(b"1234567890", announced=5)
    for key in ("short", "long"):
        assert stand.work(stand.trigger(bucket, key).task_id) == "scheduled"
    assert stand.versions() == []
    assert staged_keys(stand) == set()


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


# -- hosts, staging, cancel --------------------------------------------------------------------


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
    resource = f"origin:http://127.0.0.1:{gone.port}"
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
    stand.hosts._take(parse_url(upstream.url)).running = 4
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
    assert staged_keys(stand) == set()


# -- going on where it stopped -----------------------------------------------------------------


def test_a_broken_connection_goes_on_behind_what_has_come(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    upstream.routes["/base/a"] = breaking(LARGE, after=SEGMENT_BYTES * 2 + 500)
    pulling = stand.trigger(bucket, "a")
    assert stand.work(pulling.task_id) == "scheduled"
    had = sum(one.size_bytes for one in stand.segments())
    assert SEGMENT_BYTES * 2 <= had < len(LARGE)
    passes(sweeper(stand), 3)

    assert stand.work(pulling.task_id) == "completed"
    assert upstream.asked[1].headers["range"] == f"bytes={had}-"
    assert upstream.asked[1].headers["if-range"] == ETAG
    assert "resumed" in stand.event_types(pulling.task_id)
    (version,) = stand.versions()
    assert stand.work(version.task_id) == "completed"
    assert stand.stored_bytes(version.id) == LARGE
    assert stand.segments() == []
    assert staged_keys(stand) == set()


def test_what_does_not_fit_behind_it_begins_anew(stand: OriginStand, upstream: Upstream) -> None:
    bucket = stand.bucket()
    stand.fills(bucket, upstream.url, tries=4)
    for number, second in enumerate(
        (
            {"etag": '"v2"'},
            {"etag": 'W/"v1"'},
            {"shift": 1},
            {"shift": -1},
            {"total": 1},
            {"status": "200 OK"},
            {"status": "416 Range Not Satisfiable"},
        )
    ):
        newer = os.urandom(SEGMENT_BYTES * 2)
        older = ranged(newer, **second)  # type: ignore[arg-type]
        upstream.routes[f"/{number}"] = breaking(LARGE, after=SEGMENT_BYTES * 2, then=older)
        pulling = stand.trigger(bucket, str(number))
        assert stand.work(pulling.task_id) == "scheduled"
        assert stand.segments() != []
        assert stand.work(pulling.task_id) == "completed"
        version = stand.versions()[-1]
        assert stand.work(version.task_id) == "completed"
        assert stand.stored_bytes(version.id) == newer
        assert stand.segments() == []
        assert staged_keys(stand) == set()


def test_without_a_strong_etag_nothing_is_kept(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    upstream.routes["/base/a"] = breaking(LARGE, after=SEGMENT_BYTES * 2, etag='W/"weak"')
    pulling = stand.trigger(bucket, "a")
    assert stand.work(pulling.task_id) == "scheduled"
    assert stand.segments() == []
    assert staged_keys(stand) == set()


def test_stretches_whose_file_is_gone_begin_anew(stand: OriginStand, upstream: Upstream) -> None:
    bucket = stand.bucket()
    stand.fills(bucket, upstream.url, tries=4)
    upstream.routes["/a"] = breaking(LARGE, after=SEGMENT_BYTES * 2 + 500)
    pulling = stand.trigger(bucket, "a")
    stand.work(pulling.task_id)
    stand.staging.remove(stand.segments()[0].staging_key, deadline=Deadline(5))
    assert stand.work(pulling.task_id) == "scheduled"
    assert stand.work(pulling.task_id) == "completed"
    (version,) = stand.versions()
    stand.work(version.task_id)
    assert stand.stored_bytes(version.id) == LARGE


# -- sweeps ------------------------------------------------------------------------------------


def test_an_end_that_the_pull_did_not_hear_of_is_settled(stand: OriginStand, bucket: int) -> None:
    pulling = stand.trigger(bucket, "a")
    assert pulling.task_id is not None
    stand.bench.set(pulling.task_id, state="failed", error_code="lost", finished_at=utc_now())
    passes(sweeper(stand), 2)
    assert stand.work_all("origin") == ["completed"]
    pull = stand.pull_row(pulling.pull_id)
    assert (pull.state, pull.error_code) == ("failed", "lost")


def test_what_is_over_is_forgotten(stand: OriginStand, upstream: Upstream, bucket: int) -> None:
    upstream.routes["/base/b"] = answer(BODY)
    for key in ("a", "b"):
        stand.work(stand.trigger(bucket, key).task_id)
    missed, stored = stand.pulls()
    passes(sweeper(stand))
    assert stand.miss(bucket, "a") is not None
    assert len(stand.pulls()) == 2

    def age(session: Session) -> None:
        week = utc_now() - dt.timedelta(days=8)
        session.execute(sa.update(OriginMiss).values(expires_at=week))
        session.execute(
            sa.update(OriginPull).where(OriginPull.id == stored.id).values(ended_at=week)
        )
        add_segment(session, missed.id, Segment(0, "live/00/late", 1))

    stand.db.run_session(age)
    passes(sweeper(stand))
    assert stand.miss(bucket, "a") is None
    assert [one.id for one in stand.pulls()] == [missed.id]
    assert stand.segments() == []


# -- what there is -----------------------------------------------------------------------------


def staged_keys(stand: OriginStand) -> set[str]:
    old = stand.staging.old(minimum_age_seconds=0.0, deadline=Deadline(5))
    return {entry.key for entry in old}


# -- servers -----------------------------------------------------------------------------------


def raw(data: bytes) -> Callable[[socket.socket, Asked], None]:
    def script(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(data)

    return script


def breaking(
    body: bytes,
    *,
    after: int,
    etag: str = ETAG,
    then: Callable[[socket.socket, Asked], None] | None = None,
) -> Callable[[socket.socket, Asked], None]:
    """Break the first answer off; serve ranges of the same body afterwards, or what is given."""
    first = threading.Event()

    def script(connection: socket.socket, asked: Asked) -> None:
        if not first.is_set():
            first.set()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nETag: {etag}\r\n\r\n"
            connection.sendall(head.encode() + body[:after])
        elif then is not None:
            then(connection, asked)
        else:
            ranged(body, etag=etag)(connection, asked)

    return script
