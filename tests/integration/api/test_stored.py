"""Objects that an upload worker has stored: reads from the channel, known content, races."""

from __future__ import annotations

import hashlib
import random
import threading
from pathlib import Path

import httpx

from tests.integration.api.stack import BUCKET, OTHER, Stack
from tests.integration.api.working import uploading_worker
from tests.support.eventually import eventually

PATH = f"/buckets/{BUCKET}/objects"
CONTENT = random.Random(3).randbytes(3_000_000)


def stored(client: httpx.Client, key: str) -> bool:
    return client.head(f"{PATH}/{key}").headers.get("x-blox-state") == "stored"


def copies(stack: Stack) -> list[Path]:
    objects = stack.channel_root / "objects"
    return [path for path in objects.rglob("*") if path.is_file()]


def test_stored_object_is_read_from_its_channel(
    stack: Stack, redis_url: str, namespace: str
) -> None:
    with uploading_worker(stack, redis_url, namespace), stack.client() as client:
        pending = client.put(f"{PATH}/a", content=CONTENT)
        eventually(lambda: stored(client, "a"), 20)
        eventually(lambda: not stack.staged_files())
        got = client.get(f"{PATH}/a")
        assert (got.status_code, got.content) == (200, CONTENT)
        assert got.headers["etag"] == pending.headers["etag"]
        part = client.get(f"{PATH}/a", headers={"range": "bytes=1048570-2097160"})
        assert (part.status_code, part.content) == (206, CONTENT[1048570:2097161])
        task = client.get(pending.headers["location"].removeprefix("/v1")).json()
        assert task["state"] == "completed"
        assert [event["type"] for event in task["events"]]


def test_known_content_is_stored_at_once_and_only_once(
    stack: Stack, redis_url: str, namespace: str
) -> None:
    with (
        uploading_worker(stack, redis_url, namespace),
        stack.client() as client,
        stack.client(tenant=OTHER) as other,
    ):
        client.put(f"{PATH}/a", content=CONTENT)
        eventually(lambda: stored(client, "a"), 20)
        again = client.put(f"{PATH}/b", content=CONTENT)
        assert (again.status_code, again.json()["state"]) == (201, "stored"), again.text
        assert again.json()["task_id"] is None
        assert client.put(f"{PATH}/b", content=CONTENT).status_code == 200
        order = {"key": "c", "sha256": hashlib.sha256(CONTENT).hexdigest(), "size": len(CONTENT)}
        instant = f"/buckets/{BUCKET}/instant-uploads"
        once = {"idempotency-key": "i1"}
        first = client.post(instant, json=order, headers=once)
        assert (first.status_code, first.json()["state"]) == (201, "stored"), first.text
        assert client.post(instant, json=order, headers=once).json() == first.json()
        new = {"if-none-match": "*"}
        assert client.post(instant, json=order, headers=new).status_code == 412
        forged = {**order, "metadata": {"http.set-cookie": "a=b"}}
        assert client.post(instant, json=forged).json()["code"] == "metadata_invalid"
        for key in ("a", "b", "c"):
            assert client.get(f"{PATH}/{key}").content == CONTENT
        assert len(copies(stack)) == 1
        eventually(lambda: not stack.staged_files())
        # Another tenant neither learns that the content is known nor shares it.
        refused = other.post(instant, json=order)
        assert (refused.status_code, refused.json()["code"]) == (404, "content_unknown")
        assert other.put(f"{PATH}/a", content=CONTENT).status_code == 202


def test_channel_that_is_gone_is_said(stack: Stack, redis_url: str, namespace: str) -> None:
    with uploading_worker(stack, redis_url, namespace), stack.client() as client:
        client.put(f"{PATH}/a", content=CONTENT)
        eventually(lambda: stored(client, "a"), 20)
        moved = stack.channel_root.with_name("moved")
        stack.channel_root.rename(moved)
        answer = client.get(f"{PATH}/a")
        assert (answer.status_code, answer.json()["code"]) == (503, "content_unavailable")
        assert str(stack.channel_root) not in answer.text
        moved.rename(stack.channel_root)
        eventually(lambda: client.get(f"{PATH}/a").content == CONTENT, 30)


def test_reads_meet_no_gap_while_versions_come_and_are_stored(
    stack: Stack, redis_url: str, namespace: str
) -> None:
    """Each read gives one version, whole, and never an older one than acknowledged before it."""
    versions = [f"{number:04}".encode() * 20_000 for number in range(12)]
    acknowledged = -1
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        with stack.client() as reader:
            while not done.is_set():
                oldest = acknowledged
                answer = reader.get(f"{PATH}/k")
                if answer.status_code != 200:
                    wrong.append(answer.text)
                elif answer.content not in versions[oldest:]:
                    wrong.append((oldest, answer.content[:4], len(answer.content)))

    with uploading_worker(stack, redis_url, namespace), stack.client() as client:
        client.put(f"{PATH}/k", content=versions[0])
        acknowledged = 0
        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for number, content in enumerate(versions[1:], start=1):
            assert client.put(f"{PATH}/k", content=content).status_code == 202
            acknowledged = number
        eventually(lambda: stored(client, "k"), 30)
        done.set()
        for reader in readers:
            reader.join()
    assert wrong == []


def test_racing_writers_of_one_key_are_all_answered(stack: Stack) -> None:
    answers: list[httpx.Response] = []

    def write(number: int) -> None:
        with stack.client() as client:
            for turn in range(5):
                content = f"{number}-{turn}".encode()
                answers.append(client.put(f"{PATH}/k", content=content))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [202] * 20
    generations = sorted(answer.json()["generation"] for answer in answers)
    assert generations == list(range(1, 21))
    with stack.client() as client:
        newest = max(answers, key=lambda answer: int(answer.json()["generation"]))
        assert client.get(f"{PATH}/k").headers["etag"] == newest.headers["etag"]
