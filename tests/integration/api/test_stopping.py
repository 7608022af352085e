"""The end of the process while requests are in flight."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI, Request

from services.api import problems
from services.api.bodies import stream_body
from services.api.edge import Edge
from services.api.server import build_server
from services.api.serving import HttpThread, listen
from tests.integration.api.serving import Address, connection, read_answer, status_of
from tests.support.eventually import eventually


class Body(bytearray):
    def waits_for(self, count: int) -> None:
        return None

    def write(self, chunk: bytes) -> None:
        self.extend(chunk)


@contextmanager
def http(graceful_seconds: float) -> Iterator[tuple[HttpThread, Address, list[Body]]]:
    app = FastAPI()
    problems.install(app)
    bodies: list[Body] = []

    @app.put("/slow")
    async def slow(request: Request) -> int:
        bodies.append(Body())
        await stream_body(request, bodies[-1], idle_seconds=30)
        return len(bodies[-1])

    app.add_middleware(Edge, max_header_bytes=4096)
    listener = listen("127.0.0.1", 0)
    address = Address("127.0.0.1", listener.getsockname()[1])
    server = build_server(
        app, host="", port=0, max_header_bytes=4096, graceful_seconds=graceful_seconds
    )
    thread = HttpThread(server, listener, on_end=lambda reason: None)
    thread.start()
    try:
        yield thread, address, bodies
    finally:
        thread.stop(20)


HEAD = b"PUT /slow HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhello"


def test_request_that_ends_in_time_is_answered() -> None:
    with http(graceful_seconds=20) as (thread, address, bodies), connection(address) as sock:
        sock.sendall(HEAD)
        eventually(lambda: bodies and len(bodies[0]) == 5)
        stopping = threading.Thread(target=thread.stop, args=(20,))
        stopping.start()
        eventually(lambda: not reachable(address), message="it takes nothing new")
        sock.sendall(b"world")
        answer = read_answer(sock)
        stopping.join(20)
    assert status_of(answer) == 200
    assert answer.endswith(b"10")


def test_request_that_is_cut_short_is_told_to_come_again() -> None:
    with http(graceful_seconds=1) as (thread, address, bodies), connection(address) as sock:
        sock.sendall(HEAD)
        eventually(lambda: bodies and len(bodies[0]) == 5)
        stopping = threading.Thread(target=thread.stop, args=(20,))
        stopping.start()
        answer = read_answer(sock)
        stopping.join(20)
    assert status_of(answer) == 503
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"retry-after: " in head
    assert json.loads(body)["code"] == "shutting_down"


def reachable(address: Address) -> bool:
    try:
        with connection(address):
            return True
    except ConnectionRefusedError:
        return False
