"""How a request is framed: every byte of its body arrives, nothing behind it becomes a header."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import pytest
from fastapi import FastAPI, Request

from services.api import problems
from services.api.bodies import stream_body
from services.api.edge import Edge
from tests.integration.api.serving import Address, connection, read_answer, serving, status_of

CLOSE = b"host: x\r\nconnection: close\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


#: Set once a paused request has its body.
SEEN = threading.Event()


class Body(bytearray):
    def waits_for(self, count: int) -> None:
        return None

    def write(self, chunk: bytes) -> None:
        self.extend(chunk)


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    app = FastAPI()
    problems.install(app)

    @app.api_route("/echo", methods=["GET", "PUT"])
    async def echo(request: Request) -> dict[str, str | None]:
        body = Body()
        await stream_body(request, body, idle_seconds=5)
        # Looked up only now, as the routes with a JSON body do.
        return {"body": body.decode(), "late": request.headers.get("x-late")}

    @app.put("/pause")
    async def pause(request: Request) -> dict[str, str]:
        body = Body()
        await stream_body(request, body, idle_seconds=5)
        SEEN.set()
        await asyncio.sleep(0.3)
        return {"body": body.decode()}

    app.add_middleware(Edge, max_header_bytes=4096)
    with serving(app, max_header_bytes=4096) as served:
        yield served


def ask(address: Address, request: bytes) -> bytes:
    with connection(address) as sock:
        sock.sendall(request)
        return read_answer(sock)


def document(answer: bytes) -> dict[str, object]:
    parsed: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return parsed


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
@pytest.mark.parametrize(
    "framed", [b"content-length: 5\r\n\r\nhello", CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"]
)
def test_body_of_a_request_that_offers_an_upgrade_is_read(
    address: Address, protocol: bytes, framed: bytes
) -> None:
    offer = b"host: x\r\nconnection: upgrade, http2-settings\r\nupgrade: " + protocol + b"\r\n"
    put = b"PUT /echo HTTP/1.1\r\n" + offer + framed
    # Two more on the same connection: an offer without a body must not silence it either.
    get = b"GET /echo HTTP/1.1\r\n" + offer + b"\r\n"
    last = b"PUT /echo HTTP/1.1\r\n" + CLOSE + b"content-length: 3\r\n\r\nbye"
    answers = ask(address, put + get + last)
    assert answers.count(b"HTTP/1.1 200 OK") == 3
    assert [answers.count(text) for text in (b'"hello"', b'""', b'"bye"')] == [1, 1, 1]


def test_offer_that_comes_byte_by_byte_is_declined_as_well(address: Address) -> None:
    request = (
        b"PUT /echo HTTP/1.1\r\nconnection: close, upgrade\r\nupgrade: h2c\r\n"
        b"content-length: 5\r\n\r\nhello"
    )
    with connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for place in range(len(request)):
            sock.sendall(request[place : place + 1])
        assert document(read_answer(sock))["body"] == "hello"


def test_nothing_is_tunnelled(address: Address) -> None:
    for target in (b"x:80", b"/echo"):
        answer = ask(address, b"CONNECT " + target + b" HTTP/1.1\r\n" + CLOSE + b"\r\n")
        assert status_of(answer) == 400


def test_trailer_is_no_header(address: Address) -> None:
    request = b"PUT /echo HTTP/1.1\r\n" + CLOSE + CHUNKED + b"5\r\nhello\r\n0\r\nx-late: 1\r\n\r\n"
    assert document(ask(address, request)) == {"body": "hello", "late": None}


@pytest.mark.parametrize(
    "framing",
    [b"0\r\n" + b"x-a: b\r\n" * 8192, b"0\r\nx-a: " + b"b" * 65536, b"5;" + b"b" * 65536],
    ids=["trailers", "trailer", "chunk extension"],
)
def test_framing_without_end_is_cut_off_before_it_fills_memory(
    address: Address, framing: bytes
) -> None:
    with connection(address) as sock:
        sock.sendall(b"PUT /echo HTTP/1.1\r\n" + CLOSE + CHUNKED + b"5\r\nhello\r\n" + framing)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(1000):
                sock.sendall(framing[-8192:])
            pytest.fail("8 MB of framing were taken in")


@pytest.mark.parametrize("chunk", [b"-5\r\n", b"5\nhello\n", b"f" * 17 + b"\r\n", b"x\r\n"])
def test_broken_chunk_is_answered(address: Address, chunk: bytes) -> None:
    answer = ask(address, b"PUT /echo HTTP/1.1\r\n" + CLOSE + CHUNKED + chunk)
    assert (status_of(answer), document(answer)["code"]) == (400, "bad_request")


LONGER = b"PUT /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"


def test_body_that_is_longer_than_announced_is_refused(address: Address) -> None:
    """What comes along with it shows that the length is wrong: nobody has seen its end yet."""
    answer = ask(address, LONGER + b" and more")
    assert (status_of(answer), document(answer)["code"]) == (400, "bad_request")


def test_what_comes_after_a_request_does_not_take_its_answer(address: Address) -> None:
    """It was served whole by then: its answer comes, and then the connection ends."""
    with connection(address) as sock:
        sock.sendall(b"PUT /pause HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello")
        SEEN.wait(20)
        sock.sendall(b" and more")
        answer = read_answer(sock)
    assert (status_of(answer), document(answer)["body"]) == (200, "hello")


def test_body_in_another_coding_than_chunks_is_refused(address: Address) -> None:
    """Its bytes would be kept as they came, encoded."""
    for coding, status in ((b"gzip, chunked", 501), (b"identity", 400), (b"chunked, gzip", 400)):
        head = b"PUT /echo HTTP/1.1\r\n" + CLOSE + b"transfer-encoding: " + coding + b"\r\n\r\n"
        answer = ask(address, head + b"5\r\nhello\r\n0\r\n\r\n")
        assert status_of(answer) == status, coding
