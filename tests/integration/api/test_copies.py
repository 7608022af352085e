"""Copies and moves over HTTP, and keys that look like actions."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pymysql
import pytest
import sqlalchemy as sa

from tests.integration.api.stack import BUCKET, OTHER, Stack
from tests.integration.api.working import uploading_worker
from tests.support.eventually import eventually

pytestmark = pytest.mark.databases("sqlite")

OBJECTS = f"/buckets/{BUCKET}/objects"


@pytest.fixture
def client(stack: Stack, redis_url: str, namespace: str) -> Iterator[httpx.Client]:
    """A client of an application with a worker that stores what is put."""
    with uploading_worker(stack, redis_url, namespace):
        yield stack.client()


def store(client: httpx.Client, key: str, content: bytes = b"hello", **headers: str) -> str:
    address = f"{OBJECTS}/{quote(key)}"
    answer = client.put(address, content=content, headers=headers)
    assert answer.is_success
    eventually(lambda: client.head(address).headers["x-blox-state"] == "stored")
    return answer.headers["etag"]


def test_copy_and_move(client: httpx.Client, stack: Stack) -> None:
    etag = store(client, "a/k", **{"x-blox-meta-colour": "red", "cache-control": "no-cache"})
    answer = client.post(f"{OBJECTS}/a/k:copy", json={"key": "b"})
    assert answer.status_code == 201
    assert (answer.json()["state"], answer.json()["key"]) == ("stored", "b")
    found = client.get(f"{OBJECTS}/b")
    assert (found.content, found.headers["etag"]) == (b"hello", etag)
    assert found.headers["x-blox-meta-colour"] == "red"
    assert found.headers["cache-control"] == "no-cache"

    order = {"key": "c", "metadata": {"colour": "blue"}, "content_type": "image/png"}
    headers = {"if-match": etag, "if-none-match": "*", "idempotency-key": "one"}
    moved = client.post(f"{OBJECTS}/b:move", json=order, headers=headers)
    assert moved.status_code == 201
    again = client.post(f"{OBJECTS}/b:move", json=order, headers=headers)
    assert again.json() == moved.json()
    assert client.head(f"{OBJECTS}/b").status_code == 404
    found = client.get(f"{OBJECTS}/c")
    assert (found.headers["content-type"], found.headers["x-blox-meta-colour"]) == (
        "image/png",
        "blue",
    )
    assert stack.count("blobs") == 1


def test_refusals(client: httpx.Client, stack: Stack) -> None:
    etag = store(client, "k")
    there = store(client, "there", b"other")
    address = f"{OBJECTS}/k:copy"
    before = stack.count("versions")

    def code(json: object, expected: int, **headers: str) -> str:
        answer = client.post(address, json=json, headers=headers)
        assert answer.status_code == expected, answer.text
        return str(answer.json()["code"])

    assert code({"key": "there"}, 412, **{"if-none-match": "*"}) == "precondition_failed"
    assert code({"key": "there", "etag": etag}, 412) == "precondition_failed"
    assert code({"key": "x"}, 412, **{"if-match": there}) == "precondition_failed"
    assert code({"key": "k"}, 400) == "same_key"
    assert code({"key": "a/../b"}, 400) == "key_invalid"
    assert code({"key": "x", "bucket": "nowhere"}, 404) == "bucket_not_found"
    assert code({"key": "x", "bucket": "\N{EURO SIGN}"}, 422) == "validation"
    assert code({}, 422) == "validation"
    assert client.post(f"{OBJECTS}/never:copy", json={"key": "x"}).status_code == 404
    foreign = stack.client(tenant=OTHER).post(address, json={"key": "x"})
    assert (foreign.status_code, foreign.json()["code"]) == (404, "object_not_found")
    assert stack.client("objects:read").post(address, json={"key": "x"}).status_code == 403
    assert stack.count("versions") == before


def test_source_on_its_way_is_refused_with_patience(stack: Stack) -> None:
    client = stack.client()
    client.put(f"{OBJECTS}/k", content=b"hello")
    answer = client.post(f"{OBJECTS}/k:move", json={"key": "x"})
    assert (answer.status_code, answer.json()["code"]) == (409, "source_not_stored")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["state"] == "pending"


@pytest.mark.parametrize(
    "key", ["k:copy", "a/b:move", ":copy", "a:copy:copy", "a b:copy", "ä:copy"]
)
def test_keys_that_look_like_actions_are_keys(client: httpx.Client, key: str) -> None:
    store(client, key, key.encode())
    assert client.get(f"{OBJECTS}/{quote(key)}").content == key.encode()
    copied = client.post(f"{OBJECTS}/{quote(key)}:copy", json={"key": "copied:move"})
    assert copied.status_code == 201
    assert client.get(f"{OBJECTS}/copied:move").content == key.encode()
    # Also where a client encodes the colon.
    copied = client.post(f"{OBJECTS}/{quote(key, safe='')}%3Acopy", json={"key": "again"})
    assert copied.status_code == 201
    assert client.delete(f"{OBJECTS}/{quote(key)}").status_code == 204
    assert client.get(f"{OBJECTS}/{quote(key)}").status_code == 404


def test_action_without_a_key_is_no_action(client: httpx.Client) -> None:
    answer = client.post(f"{OBJECTS}/:copy", json={"key": "x"})
    assert (answer.status_code, answer.json()["code"]) == (400, "key_invalid")
    answer = client.post(f"{OBJECTS}/%ff:copy", json={"key": "x"})
    assert (answer.status_code, answer.json()["code"]) == (400, "key_invalid")
    assert client.post(f"{OBJECTS}/k", json={"key": "x"}).status_code == 405


@pytest.mark.databases("mariadb")
def test_try_that_was_undone_releases_no_bytes(
    stack: Stack, redis_url: str, namespace: str
) -> None:
    """The first try supersedes a write that waits; the second finds the bytes elsewhere."""
    stack.make_bucket("into")
    with uploading_worker(stack, redis_url, namespace), stack.client() as client:
        store(client, "k")
    tries = 0

    def refuse(_: sa.Connection) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise sa.exc.OperationalError("COMMIT", None, pymysql.err.OperationalError(1213, ""))

    def move_away(connection: sa.Connection) -> None:
        if tries == 1:
            with stack.engine.connect() as other:
                channels = "UPDATE buckets SET channels = '[\"b\"]' WHERE name = 'into'"
                other.connection.cursor().execute(channels)
                other.connection.commit()

    with stack.client() as client:
        target = "/buckets/into/objects/t"
        assert client.put(target, content=b"acknowledged").status_code == 202
        staged = stack.staged_files()
        sa.event.listen(stack.engine, "commit", refuse)
        sa.event.listen(stack.engine, "begin", move_away)
        try:
            order = {"key": "t", "bucket": "into"}
            answer = client.post(f"{OBJECTS}/k:copy", json=order)
        finally:
            sa.event.remove(stack.engine, "commit", refuse)
            sa.event.remove(stack.engine, "begin", move_away)
        assert (tries, answer.status_code) == (2, 202), answer.text
        assert answer.json()["state"] == "copying"
        assert stack.staged_files() == staged
        assert client.get(target).content == b"acknowledged"


def test_copies_over_channels_are_not_more_than_may_wait(
    tight_stack: Stack, redis_url: str, namespace: str
) -> None:
    tight_stack.make_bucket("into")
    with (
        uploading_worker(tight_stack, redis_url, namespace),
        tight_stack.client() as client,
    ):
        store(client, "k")
        with tight_stack.engine.begin() as connection:
            channels = "UPDATE buckets SET channels = '[\"b\"]' WHERE name = 'into'"
            connection.execute(sa.text(channels))

        def begin(number: int) -> httpx.Response:
            order = {"key": str(number), "bucket": "into"}
            return client.post(f"{OBJECTS}/k:copy", json=order)

        assert [begin(number).status_code for number in range(3)] == [202, 202, 202]
        refused = begin(3)
        assert (refused.status_code, refused.json()["code"]) == (429, "backlog_full")
        assert tight_stack.count("copies") == 3
