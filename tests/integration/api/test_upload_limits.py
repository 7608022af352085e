"""Uploads in parts at their limits, against each other, and where nobody serves them."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tests.integration.api.sending import begin, put
from tests.integration.api.stack import BUCKET, Stack, running_stack
from tests.support.eventually import eventually


def test_limits_are_told_before_the_body(tight_stack: Stack) -> None:
    with tight_stack.client() as client:
        too_large = {"operation_id": "x", "bucket": BUCKET, "key": "a", "size": 100_001}
        answer = client.post("/uploads", json=too_large)
        assert (answer.status_code, answer.json()["max_object_bytes"]) == (413, 100_000)
        for part_bytes in (1, 2**40):
            order = {**too_large, "size": None, "part_bytes": part_bytes}
            assert client.post("/uploads", json=order).json()["code"] == "part_bytes_invalid"
        upload = begin(client)["id"]
        assert put(client, upload, 1, bytes(70_000)).status_code == 200
        assert put(client, upload, 1, bytes(90_000)).status_code == 200
        answer = put(client, upload, 2, bytes(10_001))
        assert (answer.status_code, answer.json()["max_part_bytes"]) == (413, 10_000)
        chunks = (bytes(1000) for _ in range(11))
        assert client.put(f"/uploads/{upload}/parts/2", content=chunks).status_code == 413
        assert put(client, upload, 2, bytes(10_000)).status_code == 200
        # Three tasks of this tenant wait: no more work, and no more bytes for it.
        for number in range(3):
            client.put(f"/buckets/{BUCKET}/objects/{number}", content=b"x")
        eventually(lambda: put(client, upload, 3, b"").status_code == 429)
        for refused in (
            client.post(f"/uploads/{upload}:complete"),
            client.post("/uploads", json={**too_large, "size": 1}),
        ):
            assert (refused.status_code, refused.json()["code"]) == (429, "backlog_full")
            assert "retry-after" in refused.headers
        assert client.get(f"/uploads/{upload}").json()["state"] == "open"


@pytest.mark.databases("sqlite")
def test_a_tenant_has_so_many_uploads_open(
    blox_url: str, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    with (
        running_stack(blox_url, redis_url, namespace, tmp_path, max_open_uploads=2) as stack,
        stack.client() as client,
    ):
        first, _ = begin(client), begin(client)
        order = {"operation_id": "x", "bucket": BUCKET, "key": "a"}
        refused = client.post("/uploads", json=order)
        assert (refused.status_code, refused.json()["code"]) == (429, "uploads_open")
        known = {"operation_id": first["operation_id"], "bucket": BUCKET, "key": "film.mp4"}
        assert client.post("/uploads", json=known).status_code == 200
        client.delete(f"/uploads/{first['id']}")
        assert client.post("/uploads", json=order).status_code == 201


@pytest.mark.databases("mariadb")
def test_the_last_of_many_writes_of_a_part_counts(stack: Stack) -> None:
    """Writers of one number at once: one file is left, and it is the one that the row names."""
    with stack.client() as client:
        upload = begin(client)["id"]
        contents = [bytes([number]) * 70_000 for number in range(8)]
        answers: list[httpx.Response] = []

        def write(content: bytes) -> None:
            answers.append(put(client, upload, 1, content))

        threads = [threading.Thread(target=write, args=(content,)) for content in contents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers] == [200] * 8
        there = client.get(f"/uploads/{upload}").json()
        assert (there["received_bytes"], there["part_count"]) == (70_000, 1)
        (file,) = stack.staged_files()
        assert hashlib.sha256(file.read_bytes()).hexdigest() == there["parts"][0]["sha256"]


def complete_at_once(
    clients: list[httpx.Client], upload: str, orders: list[list[int]]
) -> list[httpx.Response]:
    """Complete an upload with these parts at the same moment, at one client's node each."""
    barrier = threading.Barrier(len(orders))
    answers: dict[int, httpx.Response] = {}

    def complete(at: int) -> None:
        named = [{"number": part} for part in orders[at]]
        barrier.wait(20)
        answers[at] = clients[at].post(f"/uploads/{upload}:complete", json={"parts": named})

    threads = [threading.Thread(target=complete, args=(at,)) for at in range(len(orders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [answers[at] for at in range(len(orders))]


@pytest.mark.databases("mariadb")
def test_of_completions_at_once_one_counts(
    stack: Stack, blox_url: str, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    """At two nodes, with different parts: the others are refused, and no part of its is lost."""
    orders = [[1], [1, 3], [1, 2, 3]]
    with (
        running_stack(blox_url, redis_url, namespace, tmp_path) as second,
        stack.client() as client,
        second.client() as other,
    ):
        for turn in range(5):
            upload = begin(client, key=f"k{turn}")["id"]
            for part in (1, 2, 3):
                assert put(client, upload, part, bytes(70_000)).status_code == 200
            answers = complete_at_once([client, other, client], upload, orders)
            codes = [answer.status_code for answer in answers]
            assert sorted(codes) == [202, 409, 409]
            winner = codes.index(202)
            there = other.get(f"/uploads/{upload}").json()
            assert [part["number"] for part in there["parts"]] == orders[winner]
            assert there["task_id"] == answers[winner].json()["task_id"]
            refused = {answer.json().get("code") for answer in answers} - {None}
            assert refused == {"complete_mismatch"}


@pytest.mark.databases("mariadb")
@pytest.mark.parametrize(
    ("end", "answer"),
    [
        ("give up", (404, "upload_not_found")),
        ("complete", (409, "upload_completing")),
        ("expire", (409, "upload_expired")),
    ],
)
def test_a_part_that_comes_too_late_leaves_nothing(
    stack: Stack, end: str, answer: tuple[int, str]
) -> None:
    """The upload takes no parts any more while the body comes: its file goes with the refusal."""
    with stack.client() as client, stack.client() as other:
        upload = begin(client)["id"]
        put(client, upload, 2, b"in time")
        begun, gone = threading.Event(), threading.Event()

        def body() -> Any:
            yield bytes(80_000)
            begun.set()
            assert gone.wait(20)
            yield bytes(80_000)

        answers: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: answers.append(client.put(f"/uploads/{upload}/parts/1", content=body()))
        )
        thread.start()
        assert begun.wait(20)
        if end == "give up":
            assert other.delete(f"/uploads/{upload}").status_code == 204
        elif end == "complete":
            named = {"parts": [{"number": 2}]}
            assert other.post(f"/uploads/{upload}:complete", json=named).status_code == 202
        else:
            with stack.engine.begin() as connection:
                connection.execute(sa.text("UPDATE upload_sessions SET expires_at = '2020-01-01'"))
        gone.set()
        thread.join(20)
        assert (answers[0].status_code, answers[0].json()["code"]) == answer
        assert len(stack.staged_files()) == stack.count("upload_parts") == (end != "give up")


@pytest.mark.databases("sqlite")
def test_switched_off_it_answers_501_and_makes_nothing(
    blox_url: str, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    off = frozenset({"upload"})
    with (
        running_stack(blox_url, redis_url, namespace, tmp_path, switched_off=off) as stack,
        stack.client() as client,
    ):
        order = {"operation_id": "x", "bucket": BUCKET, "key": "a"}
        for refused in (
            client.post("/uploads", json=order),
            put(client, "none", 1, b"x"),
            client.post("/uploads/none:complete"),
        ):
            assert (refused.status_code, refused.json()["code"]) == (501, "switched_off")
            assert "switched off" in refused.json()["detail"]
        assert stack.count("upload_sessions") == 0
        assert stack.is_untouched()
