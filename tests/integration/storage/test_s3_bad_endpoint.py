"""An S3 endpoint that hangs, lies, breaks off or fails: always one clear error, in time."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from shared.core.clock import Deadline
from shared.core.errors import CancelRequested
from shared.storage.body import Body
from shared.storage.channel import Channel, Part
from shared.storage.errors import (
    ChannelRefused,
    ChannelThrottled,
    ChannelTimeout,
    ChannelUnavailable,
    DamagedOnTheWay,
    DeadlinePassed,
)
from shared.storage.registry import OpenChannel, open_channel
from shared.storage.spec import ChannelSpec, Tuning
from shared.storage.transfer import transfer
from tests.support.content import put, read, sha256
from tests.support.scripted import Request, Scripted, always, error_body, scripted_server

MEBIBYTE = 1024 * 1024
FOUND = {"ETag": '"e"', "Last-Modified": "Mon, 02 Nov 2026 10:00:00 GMT"}


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted_server(always(500)) as running:
        yield running


def channel_at(endpoint: str, **settings: Any) -> Channel:
    return open_channel(
        ChannelSpec(
            name="s",
            kind="s3",
            settings={"endpoint": endpoint, "bucket": "bucket", **settings},
            secrets={"access_key": "a", "secret_key": "b"},
        )
    )


@pytest.fixture
def channel(server: Scripted) -> Channel:
    return channel_at(server.endpoint)


def calls(channel: Channel, deadline: Deadline) -> dict[str, Callable[[], object]]:
    digest, part = sha256(b"abc"), Part(number=1, etag="e", size=3)
    return {
        "put": lambda: channel.put("k", Body(b"abc"), sha256=digest, deadline=deadline),
        "get": lambda: channel.get("k", deadline=deadline).__enter__(),
        "head": lambda: channel.head("k", deadline=deadline),
        "delete": lambda: channel.delete("k", deadline=deadline),
        "list": lambda: list(channel.list(deadline=deadline)),
        "copy": lambda: channel.copy("k", "l", deadline=deadline),
        "create_upload": lambda: channel.create_upload("k", deadline=deadline),
        "put_part": lambda: channel.put_part(
            "k", "u", 1, Body(b"abc"), offset=0, deadline=deadline
        ),
        "list_parts": lambda: list(channel.list_parts("k", "u", deadline=deadline)),
        "complete": lambda: channel.complete_upload("k", "u", [part], deadline=deadline),
        "abort_upload": lambda: channel.abort_upload("k", "u", deadline=deadline),
        "list_uploads": lambda: list(channel.list_uploads(deadline=deadline)),
        "probe": lambda: channel.probe(deadline=deadline),
        "prepare": lambda: channel.prepare(deadline=deadline),
    }


ALL = sorted(calls(None, Deadline()))  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ALL)
def test_a_server_error_is_unavailable_and_nothing_is_tried_twice(
    server: Scripted, channel: Channel, call: str
) -> None:
    for status in (500, 502, 503):
        server.script = always(status)
        before = len(server.requests)
        with pytest.raises(ChannelUnavailable):
            calls(channel, Deadline(30))[call]()
        assert len(server.requests) == before + 1


@pytest.mark.parametrize("call", ALL)
def test_an_answer_that_is_no_xml_is_an_error(
    server: Scripted, channel: Channel, call: str
) -> None:
    if call in {"put", "put_part", "delete", "get", "head", "abort_upload", "probe", "prepare"}:
        server.script = always(400, b"<html>proxy error</html>")
        expected: tuple[type[Exception], ...] = (ChannelRefused,)
    else:
        server.script = always(200, b"<html>proxy error")
        expected = (ChannelUnavailable,)
    with pytest.raises(expected):
        calls(channel, Deadline(30))[call]()


def test_slow_down_says_for_how_long(server: Scripted, channel: Channel) -> None:
    server.script = always(503, error_body("SlowDown"), {"Retry-After": "12"})
    with pytest.raises(ChannelThrottled) as caught:
        put(channel, "k", b"abc")
    assert caught.value.retry_after_seconds == 12.0


@pytest.mark.parametrize("call", ["complete", "copy", "put"])
def test_an_error_inside_a_200_is_an_error(server: Scripted, channel: Channel, call: str) -> None:
    def script(request: Request) -> None:
        if request.method == "HEAD":
            request.answer(200, b"abc", FOUND)
        else:
            request.answer(200, b'<?xml version="1.0"?>\n' + error_body("InternalError"))

    server.script = script
    with pytest.raises(ChannelUnavailable) as caught:
        calls(channel, Deadline(30))[call]()
    assert caught.value.facts["provider_code"] == "InternalError"


def test_a_missing_bucket_is_never_taken_for_a_missing_key(
    server: Scripted, channel: Channel
) -> None:
    server.script = always(404, error_body("NoSuchBucket"))
    for call in ("head", "delete", "get", "put", "list", "copy", "probe"):
        with pytest.raises(ChannelRefused):
            calls(channel, Deadline(30))[call]()


def test_a_bare_404_for_a_delete_is_fine_if_the_key_is_really_gone(
    server: Scripted, channel: Channel
) -> None:
    def script(request: Request) -> None:
        request.answer(200 if request.path == "/bucket" else 404)

    server.script = script
    channel.delete("k", deadline=Deadline(30))
    server.script = always(404)
    with pytest.raises(ChannelRefused):
        channel.delete("k", deadline=Deadline(30))


@pytest.mark.parametrize("call", ALL)
def test_a_server_that_hangs_ends_with_the_network_limit(server: Scripted, call: str) -> None:
    channel = channel_at(server.endpoint, read_timeout_seconds=0.3, connect_timeout_seconds=0.2)
    server.script = server.hang
    begun = time.monotonic()
    with pytest.raises(ChannelTimeout):
        calls(channel, Deadline(30))[call]()
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("call", ALL)
def test_a_server_that_hangs_ends_with_the_deadline_of_the_call(
    server: Scripted, channel: Channel, call: str
) -> None:
    server.script = server.hang
    begun = time.monotonic()
    with pytest.raises(DeadlinePassed):
        calls(channel, Deadline(0.3))[call]()
    assert time.monotonic() - begun < 5


def test_an_address_where_nobody_listens_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    channel = channel_at(f"http://127.0.0.1:{port}")
    with pytest.raises(ChannelUnavailable) as caught:
        channel.head("k", deadline=Deadline(30))
    assert not isinstance(caught.value, ChannelTimeout)


def test_an_address_that_never_answers_the_connection_ends_with_the_connect_limit() -> None:
    """A listener whose backlog is full drops what comes, as a dead host does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            channel = channel_at(f"http://127.0.0.1:{port}", connect_timeout_seconds=0.5)
            begun = time.monotonic()
            with pytest.raises(ChannelTimeout):
                channel.head("k", deadline=Deadline(30))
            assert time.monotonic() - begun < 5
        finally:
            for filler in fillers:
                filler.close()


def test_an_object_that_is_cut_off_is_an_error_never_a_short_read(
    server: Scripted, channel: Channel
) -> None:
    def script(request: Request) -> None:
        request.answer(200, bytes(1000), declared_length=5000)
        request.connection.shutdown(socket.SHUT_RDWR)

    server.script = script
    with pytest.raises(ChannelUnavailable):
        read(channel, "k")


def test_a_connection_reset_in_the_middle_is_an_error(server: Scripted, channel: Channel) -> None:
    def script(request: Request) -> None:
        request.answer(200, bytes(1000), declared_length=5000)
        request.reset()

    server.script = script
    with pytest.raises(ChannelUnavailable):
        read(channel, "k")


def test_a_range_that_is_ignored_or_another_one_is_an_error(
    server: Scripted, channel: Channel
) -> None:
    for headers in ({}, {"Content-Range": "bytes 0-2/10"}):
        server.script = always(200, b"012", headers)
        with pytest.raises(ChannelUnavailable):
            read(channel, "k", start=5, length=3)


def trickle(server: Scripted) -> Callable[[Request], None]:
    def script(request: Request) -> None:
        request.answer(200, b"", declared_length=1000)
        for _ in range(600):
            if server.released.wait(0.05):
                return
            request.connection.sendall(b"x")

    return script


def test_an_object_that_trickles_ends_with_the_deadline(server: Scripted, channel: Channel) -> None:
    server.script = trickle(server)
    begun = time.monotonic()
    with channel.get("k", deadline=Deadline(0.6)) as chunks:
        assert next(chunks) == b"x"
        with pytest.raises(DeadlinePassed):
            list(chunks)
    assert time.monotonic() - begun < 5


def test_an_answer_that_trickles_ends_with_the_deadline(server: Scripted, channel: Channel) -> None:
    server.script = trickle(server)
    begun = time.monotonic()
    with pytest.raises(DeadlinePassed):
        list(channel.list(deadline=Deadline(0.6)))
    assert time.monotonic() - begun < 5


def test_a_provider_that_stored_other_bytes_is_found_out(
    server: Scripted, channel: Channel
) -> None:
    server.script = always(200, headers={"ETag": '"900150983cd24fb0d6963f7d28e17f73"'})
    with pytest.raises(DamagedOnTheWay):
        put(channel, "k", b"abc")
    with pytest.raises(DamagedOnTheWay):
        channel.put_part("k", "u", 1, Body(b"abc"), offset=0, deadline=Deadline(30))


def test_bodies_carry_their_checksums(server: Scripted, channel: Channel) -> None:
    server.script = always(200, headers=FOUND)
    put(channel, "k", b"abc", if_absent=True)
    sent = server.requests[-1].headers
    assert sent["content-md5"] == "kAFQmDzST7DWlj99KOF/cg=="
    assert sent["x-amz-meta-blox-sha256"] == sha256(b"abc")
    assert sent["if-none-match"] == "*"
    assert "aws-chunked" not in sent.get("content-encoding", "")
    with_sha256 = channel_at(server.endpoint, checksum="sha256", conditional_put=False)
    put(with_sha256, "k", b"abc", if_absent=True)
    sent = server.requests[-1].headers
    assert sent["x-amz-checksum-sha256"] == "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0="
    assert "content-md5" not in sent
    assert "if-none-match" not in sent


@pytest.mark.parametrize("broken", ["<IsTruncated>true</IsTruncated>", "same"])
def test_a_listing_that_does_not_end_is_an_error(
    server: Scripted, channel: Channel, broken: str
) -> None:
    token = "<NextContinuationToken>t</NextContinuationToken>" if broken == "same" else ""
    text = (
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>true</IsTruncated>{token}<Contents><Key>k</Key><Size>1</Size>"
        "<LastModified>2026-11-02T10:00:00.000Z</LastModified></Contents></ListBucketResult>"
    )
    server.script = always(200, text.encode())
    with pytest.raises(ChannelUnavailable, match="without an end"):
        list(channel.list(deadline=Deadline(30)))


def test_a_listing_whose_second_page_fails_is_an_error(server: Scripted, channel: Channel) -> None:
    pages = itertools.count()

    def script(request: Request) -> None:
        if next(pages) == 0:
            text = (
                '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                "<IsTruncated>true</IsTruncated>"
                "<NextContinuationToken>t</NextContinuationToken><Contents><Key>k</Key>"
                "<Size>1</Size><LastModified>2026-11-02T10:00:00.000Z</LastModified></Contents>"
                "</ListBucketResult>"
            )
            request.answer(200, text.encode())
        else:
            request.answer(500)

    server.script = script
    entries = channel.list(deadline=Deadline(30))
    assert next(entries).key == "k"
    with pytest.raises(ChannelUnavailable):
        next(entries)


class Memory:
    """A source in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def size(self, deadline: Deadline) -> int:
        return len(self.data)

    def open(self, start: int, length: int | None, deadline: Deadline) -> Any:
        end = None if length is None else start + length
        return nullcontext(iter([self.data[start:end]]))


def test_a_cancel_is_heard_while_the_server_takes_nothing(server: Scripted) -> None:
    """The server reads no body: the sender is stuck in the network, the owner is not."""
    reached = threading.Event()

    def script(request: Request) -> None:
        reached.set()
        server.hang(request)

    server.script, server.read_bodies = script, False
    opened = OpenChannel.around(channel_at(server.endpoint), Tuning(part_bytes=64 * MEBIBYTE))
    data = bytes(32 * MEBIBYTE)

    def check() -> None:
        if reached.is_set():
            raise CancelRequested

    begun = time.monotonic()
    with pytest.raises(CancelRequested):
        transfer(
            Memory(data),
            opened,
            "k",
            size=len(data),
            sha256=sha256(data),
            check=check,
            deadline=Deadline(60),
        )
    assert time.monotonic() - begun < 10
    assert opened.breaker.state == "closed"


def test_a_body_under_way_stops_at_the_deadline(server: Scripted, channel: Channel) -> None:
    server.script = always(200, headers=FOUND)
    deadline = Deadline(0.5)

    def pace(count: int) -> None:
        time.sleep(0.1)

    data = bytes(8 * MEBIBYTE)
    with pytest.raises(DeadlinePassed):
        channel.put("k", Body(data, pace=pace), sha256=sha256(data), deadline=deadline)


def test_a_large_body_is_paced_on_the_wire(server: Scripted, channel: Channel) -> None:
    server.script = always(200, headers=FOUND)
    steps: list[int] = []
    data = os.urandom(2 * MEBIBYTE + 5)
    channel.put("k", Body(data, pace=steps.append), sha256=sha256(data), deadline=Deadline(30))
    assert sum(steps) == len(data)
    assert max(steps) <= 256 * 1024
    assert server.requests[-1].body == data


def test_connections_are_kept_and_used_again(server: Scripted, channel: Channel) -> None:
    ports = set()

    def script(request: Request) -> None:
        ports.add(request.connection.getpeername())
        request.answer(200, b"abc", FOUND)

    server.script = script
    for _ in range(5):
        read(channel, "k")
        channel.head("k", deadline=Deadline(30))
    assert len(ports) == 1


def test_only_a_large_body_asks_for_leave_first(server: Scripted, channel: Channel) -> None:
    """The question costs a round trip, which is more than sending a small body in vain."""
    server.script = always(200, headers=FOUND)
    for size, expected in ((1, None), (MEBIBYTE, None), (2 * MEBIBYTE, "100-continue")):
        data = os.urandom(size)
        put(channel, "k", data)
        assert server.requests[-1].headers.get("expect") == expected
        assert server.requests[-1].headers["content-length"] == str(size)
        assert server.requests[-1].body == data


def test_what_a_provider_tells_of_an_object_is_read_from_its_headers(
    server: Scripted, channel: Channel
) -> None:
    md5, moment = "900150983cd24fb0d6963f7d28e17f72", "2026-11-02T10:00:00.500Z"
    server.script = always(
        200,
        b"abc",
        {"eTaG": f'"{md5}"', "Last-Modified": moment, "X-Amz-Meta-Blox-Sha256": "s"},
    )
    found = channel.head("k", deadline=Deadline(30))
    assert found is not None
    assert (found.size, found.md5, found.declared_sha256) == (3, md5, "s")
    assert found.modified_at == dt.datetime(2026, 11, 2, 10, 0, 0, 500_000)
    server.script = always(
        200,
        b"abc",
        {"ETag": f'"{md5}"', "Last-Modified": moment, "x-amz-server-side-encryption": "aws:kms"},
    )
    found = channel.head("k", deadline=Deadline(30))
    assert found is not None
    assert found.md5 is None, "what is encrypted there has an ETag that is no md5"


@pytest.mark.parametrize("call", ["put", "get", "head"])
def test_a_bucket_in_another_region_is_found_there_once_and_for_all(
    server: Scripted, channel: Channel, call: str
) -> None:
    signed_for: list[str] = []

    def script(request: Request) -> None:
        region = request.headers["authorization"].split("/")[2]
        signed_for.append(region)
        if region == "eu-west-9":
            request.answer(200, b"" if call == "put" else b"abc", FOUND)
        else:
            headers = {"x-amz-bucket-region": "eu-west-9"}
            request.answer(301, error_body("PermanentRedirect"), headers)

    server.script = script
    calls(channel, Deadline(30))[call]()
    assert signed_for[-1] == "eu-west-9"
    if call == "put":
        assert server.requests[-1].body == b"abc"
    signed_for.clear()
    calls(channel, Deadline(30))[call]()
    assert signed_for == ["eu-west-9"]


def test_a_body_that_was_refused_unsent_leaves_no_connection_that_waits_for_it(
    server: Scripted, channel: Channel
) -> None:
    server.script, server.answers_before_bodies = always(403, error_body("AccessDenied")), True
    with pytest.raises(ChannelRefused) as caught:
        put(channel, "k", bytes(3 * MEBIBYTE))
    assert caught.value.facts["provider_code"] == "AccessDenied"
    server.script = always(200, b"abc", FOUND)
    # The next request is read as one, and not as the beginning of that body.
    assert read(channel, "k") == b"abc"


def test_an_answer_in_pieces_does_not_wait_for_the_kernels_acknowledgement(
    server: Scripted, channel: Channel
) -> None:
    """Nagle's algorithm holds the second piece until the first was acknowledged: 40 ms unasked."""
    pieces = [b"5\r\n<R></\r\n", b"2\r\nR>\r\n", b"0\r\n\r\n"]

    def script(request: Request) -> None:
        request.connection.sendall(b"HTTP/1.1 200 Said\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in pieces:
            request.connection.sendall(piece)

    server.script = script
    taken = []
    for _ in range(20):
        begun = time.monotonic()
        assert list(channel.list(deadline=Deadline(30))) == []
        taken.append(time.monotonic() - begun)
    # The first ones on a connection are quick in any case.
    assert sorted(taken[5:])[7] < 0.035
