"""The outermost layer and the HTTP protocol, around a small application."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI, Request

from services.api import problems
from services.api.bodies import Sink, stream_body
from services.api.edge import Edge
from tests.integration.api.serving import Address, connection, read_answer, serving, status_of


class Counter(Sink):
    def __init__(self) -> None:
        self.bytes = 0

    def write(self, chunk: bytes) -> None:
        self.bytes += len(chunk)


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    app = FastAPI(redirect_slashes=False)
    problems.install(app)

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("secret detail")

    @app.put("/refused")
    async def refused() -> None:
        raise problems.TooLargeError("too much", max_bytes=1)

    @app.put("/counted")
    async def counted(request: Request) -> int:
        counter = Counter()
        await stream_body(request, counter, idle_seconds=0.3)
        return counter.bytes

    app.add_middleware(Edge, max_header_bytes=4096)
    with serving(app, max_header_bytes=4096, head_seconds=1.0) as served:
        yield served


def problem(answer: httpx.Response) -> dict[str, object]:
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, object] = answer.json()
    assert document["status"] == answer.status_code
    assert document["request_id"] == answer.headers["x-request-id"]
    return document


def test_surprise_is_a_problem_that_tells_no_secret(address: Address) -> None:
    answer = httpx.get(f"{address.url}/broken")
    assert answer.status_code == 500
    assert problem(answer)["code"] == "internal"
    assert "secret" not in answer.text


def test_no_route_and_wrong_method_are_problems(address: Address) -> None:
    answer = httpx.get(f"{address.url}/nowhere")
    assert (answer.status_code, problem(answer)["code"]) == (404, "no_such_route")
    answer = httpx.post(f"{address.url}/broken")
    assert (answer.status_code, problem(answer)["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET"


def test_request_id_of_the_client_is_kept_when_it_is_a_sound_one(address: Address) -> None:
    sound = httpx.get(f"{address.url}/x", headers={"x-request-id": "abc-12345678"})
    assert sound.headers["x-request-id"] == "abc-12345678"
    odd = httpx.get(f"{address.url}/x", headers={"x-request-id": "a b"})
    assert odd.headers["x-request-id"] != "a b"


def test_too_many_headers_are_refused(address: Address) -> None:
    headers = {f"x-{n}": "1" for n in range(101)}
    answer = httpx.get(f"{address.url}/x", headers=headers)
    assert (answer.status_code, problem(answer)["code"]) == (431, "headers_too_large")


def test_too_large_headers_are_refused(address: Address) -> None:
    answer = httpx.get(f"{address.url}/x", headers={"x-long": "a" * 5000})
    assert (answer.status_code, problem(answer)["code"]) == (431, "headers_too_large")


def test_head_without_end_is_cut_off_before_it_fills_memory(address: Address) -> None:
    with connection(address) as sock:
        sock.sendall(b"GET /x HTTP/1.1\r\nhost: x\r\nx-endless: ")
        try:
            for _ in range(1000):
                sock.sendall(b"a" * 65536)
            pytest.fail("64 MB of one header were taken in")
        except (BrokenPipeError, ConnectionResetError):
            pass


@pytest.mark.parametrize("begun", [b"", b"GET /x HTTP/1.1\r\nhost: x\r\nx-slow: "])
def test_head_that_does_not_come_ends_the_connection(address: Address, begun: bytes) -> None:
    with connection(address) as sock:
        sock.sendall(begun)
        answer = read_answer(sock)
    assert status_of(answer) == 408


def test_long_target_is_refused(address: Address) -> None:
    answer = httpx.get(f"{address.url}/{'a' * 20000}")
    assert (answer.status_code, problem(answer)["code"]) == (414, "uri_too_long")


def test_what_is_not_http_is_a_problem_too(address: Address) -> None:
    with connection(address) as sock:
        sock.sendall(b"HELLO\r\n\r\n")
        answer = read_answer(sock)
    assert status_of(answer) == 400
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert json.loads(body)["code"] == "bad_request"


def test_refusal_before_the_body_reaches_a_client_that_sends_first(address: Address) -> None:
    """The answer must not be lost because the connection closes on unread bytes."""
    size = 8 * 1024 * 1024
    with connection(address) as sock:
        sock.sendall(f"PUT /refused HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode())
        sock.sendall(b"a" * size)
        answer = read_answer(sock)
    assert status_of(answer) == 413
    assert b"connection: close" in answer.lower()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["max_bytes"] == 1


def test_refusal_spares_a_client_that_waits_for_100_continue(address: Address) -> None:
    with connection(address) as sock:
        sock.sendall(
            b"PUT /refused HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
            b"content-length: 100000000\r\n\r\n"
        )
        answer = read_answer(sock)
    assert status_of(answer) == 413
    assert b"100 Continue" not in answer


def test_body_that_waits_for_100_continue_is_asked_for(address: Address) -> None:
    with connection(address) as sock:
        sock.sendall(
            b"PUT /counted HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\nconnection: close\r\n"
            b"content-length: 5\r\n\r\n"
        )
        assert sock.recv(100).startswith(b"HTTP/1.1 100 Continue")
        sock.sendall(b"hello")
        answer = read_answer(sock)
    assert status_of(answer) == 200
    assert answer.endswith(b"5")


def test_body_that_stops_coming_ends_with_408(address: Address) -> None:
    with connection(address) as sock:
        sock.sendall(b"PUT /counted HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhello")
        answer = read_answer(sock)
    assert status_of(answer) == 408
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "request_timeout"


def test_connection_serves_on_after_a_refusal_without_a_body(address: Address) -> None:
    with httpx.Client() as client:
        for _ in range(3):
            assert client.put(f"{address.url}/refused").status_code == 413
            assert client.put(f"{address.url}/counted", content=b"abc").text == "3"
