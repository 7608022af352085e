"""A broken connection: what has come is gone on from, if it is surely the same."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

import pytest

from shared.core.clock import Deadline
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.origins import SEGMENT_BYTES, OriginStand
from tests.support.upstream import Asked, Upstream, ranged

LARGE = os.urandom(SEGMENT_BYTES * 3 + 1000)
ETAG = '"v1"'

#: What is different on a server is in the file on crashes.
pytestmark = pytest.mark.databases("sqlite")


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
    assert stand.staged_keys() == set()


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
        assert stand.staged_keys() == set()


@pytest.mark.parametrize("announced", [True, False])
def test_a_range_that_ends_before_its_end_is_gone_on_from(
    stand: OriginStand, upstream: Upstream, announced: bool
) -> None:
    """Without a length, or with one that fits the bytes and not the range."""
    bucket = stand.bucket()
    stand.fills(bucket, upstream.url, tries=4)
    asked_before = threading.Event()

    def short(connection: socket.socket, asked: Asked) -> None:
        if asked_before.is_set():
            ranged(LARGE)(connection, asked)
            return
        asked_before.set()
        start = int(asked.headers["range"].removeprefix("bytes=").removesuffix("-"))
        body = LARGE[start:-100]
        length = f"Content-Length: {len(body)}\r\n" if announced else ""
        span = f"Content-Range: bytes {start}-{len(LARGE) - 1}/{len(LARGE)}\r\n"
        head = f"HTTP/1.1 206 Partial Content\r\n{length}{span}ETag: {ETAG}\r\n\r\n"
        connection.sendall(head.encode() + body)

    upstream.routes["/a"] = breaking(LARGE, after=SEGMENT_BYTES * 2, then=short)
    pulling = stand.trigger(bucket, "a")
    assert stand.work(pulling.task_id) == "scheduled"
    assert stand.work(pulling.task_id) == "scheduled"
    assert stand.work(pulling.task_id) == "completed"
    (version,) = stand.versions()
    stand.work(version.task_id)
    assert stand.stored_bytes(version.id) == LARGE


def test_without_a_strong_etag_nothing_is_kept(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    upstream.routes["/base/a"] = breaking(LARGE, after=SEGMENT_BYTES * 2, etag='W/"weak"')
    pulling = stand.trigger(bucket, "a")
    assert stand.work(pulling.task_id) == "scheduled"
    assert stand.segments() == []
    assert stand.staged_keys() == set()


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
