"""Objects over HTTP: put, get by range and condition, head, delete, overwrite."""

from __future__ import annotations

import base64
import hashlib
import random

import httpx

from tests.integration.api.stack import BUCKET, OTHER, Stack

CONTENT = random.Random(7).randbytes(300_000)
PATH = f"/buckets/{BUCKET}/objects"


def put(client: httpx.Client, key: str, content: bytes = CONTENT, **headers: str) -> httpx.Response:
    answer = client.put(f"{PATH}/{key}", content=content, headers=headers)
    assert answer.status_code == 202, answer.text
    return answer


def test_put_is_acknowledged_with_its_task_and_can_be_read_at_once(stack: Stack) -> None:
    with stack.client() as client:
        answer = put(client, "cat.jpg", **{"content-type": "image/jpeg"})
        body = answer.json()
        etag = hashlib.md5(CONTENT).hexdigest()
        assert body["state"] == "pending"
        assert (body["etag"], body["size"], body["generation"]) == (etag, len(CONTENT), 1)
        assert answer.headers["etag"] == f'"{etag}"'
        assert client.get(answer.headers["location"].removeprefix("/v1")).json()["state"] in {
            "pending",
            "dispatching",
            "dispatched",
        }
        got = client.get(f"{PATH}/cat.jpg")
        assert (got.status_code, got.content) == (200, CONTENT)
        assert got.headers["content-type"] == "image/jpeg"
        assert got.headers["etag"] == f'"{etag}"'
        assert got.headers["x-blox-state"] == "pending"
        assert got.headers["accept-ranges"] == "bytes"
        assert got.headers["x-blox-sha256"] == hashlib.sha256(CONTENT).hexdigest()


def test_promises_that_hold_are_accepted(stack: Stack) -> None:
    with stack.client() as client:
        put(
            client,
            "a",
            **{
                "content-md5": base64.b64encode(hashlib.md5(CONTENT).digest()).decode(),
                "x-blox-sha256": hashlib.sha256(CONTENT).hexdigest(),
                "x-blox-size": str(len(CONTENT)),
            },
        )


def test_body_in_chunks_is_taken(stack: Stack) -> None:
    with stack.client() as client:
        pieces = (CONTENT[start : start + 10_000] for start in range(0, len(CONTENT), 10_000))
        answer = client.put(f"{PATH}/chunked", content=pieces)
        assert answer.status_code == 202
        assert client.get(f"{PATH}/chunked").content == CONTENT


def test_empty_body_is_an_object(stack: Stack) -> None:
    with stack.client() as client:
        put(client, "empty", b"")
        got = client.get(f"{PATH}/empty")
        assert (got.status_code, got.content, got.headers["content-length"]) == (200, b"", "0")
        assert client.get(f"{PATH}/empty", headers={"range": "bytes=0-"}).status_code == 416


def test_metadata_and_headers_of_the_content_come_back(stack: Stack) -> None:
    sent = {"x-blox-meta-owner": "Zoë".encode(), "cache-control": b"no-store"}
    with stack.client() as client:
        answer = client.put(f"{PATH}/m", content=b"x", headers=sent)  # type: ignore[arg-type]
        assert answer.status_code == 202
        got = client.head(f"{PATH}/m")
        assert got.headers["cache-control"] == "no-store"
        raw = dict(got.headers.raw)
        assert raw[b"x-blox-meta-owner"].decode() == "Zoë"


def test_odd_keys_come_back_under_the_same_name(stack: Stack) -> None:
    keys = ["a b", "ü/ö", "日本語", "😀", "a+b&c=d?e#f", "dir/", "/lead", "a//b", "%41", "x" * 1024]
    with stack.client() as client:
        for key in keys:
            quoted = "".join(f"%{byte:02X}" for byte in key.encode())
            put(client, quoted, key.encode())
            assert client.get(f"{PATH}/{quoted}").content == key.encode()
        listed = [item["key"] for item in client.get(PATH).json()["items"]]
        assert listed == sorted(keys, key=str.encode)


def test_ranges(stack: Stack) -> None:
    with stack.client() as client:
        put(client, "r")
        for header, start, end in (
            ("bytes=0-99", 0, 100),
            ("bytes=1000-", 1000, 300_000),
            ("bytes=-5", 299_995, 300_000),
            ("bytes=299999-400000", 299_999, 300_000),
        ):
            got = client.get(f"{PATH}/r", headers={"range": header})
            assert (got.status_code, got.content) == (206, CONTENT[start:end])
            assert got.headers["content-range"] == f"bytes {start}-{end - 1}/{len(CONTENT)}"
            head = client.head(f"{PATH}/r", headers={"range": header})
            assert (head.status_code, head.headers["content-length"]) == (206, str(end - start))


def test_range_outside_is_416_and_a_list_of_ranges_gives_all(stack: Stack) -> None:
    with stack.client() as client:
        put(client, "r")
        outside = client.get(f"{PATH}/r", headers={"range": f"bytes={len(CONTENT)}-"})
        assert outside.status_code == 416
        assert outside.json()["code"] == "range_not_satisfiable"
        assert outside.headers["content-range"] == f"bytes */{len(CONTENT)}"
        assert client.get(f"{PATH}/r", headers={"range": "bytes=0-1,3-4"}).content == CONTENT


def test_conditional_reads(stack: Stack) -> None:
    with stack.client() as client:
        etag = put(client, "c").headers["etag"]
        same = client.get(f"{PATH}/c", headers={"if-none-match": etag})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", etag)
        modified = client.head(f"{PATH}/c").headers["last-modified"]
        assert client.get(f"{PATH}/c", headers={"if-modified-since": modified}).status_code == 304
        other = client.get(f"{PATH}/c", headers={"if-match": '"other"'})
        assert (other.status_code, other.json()["code"]) == (412, "precondition_failed")
        part = {"range": "bytes=0-9", "if-range": '"other"'}
        assert client.get(f"{PATH}/c", headers=part).status_code == 200


def test_conditional_writes(stack: Stack) -> None:
    with stack.client() as client:
        new = {"if-none-match": "*"}
        assert client.put(f"{PATH}/w", content=b"1", headers=new).status_code == 202
        refused = client.put(f"{PATH}/w", content=b"2", headers=new)
        assert refused.status_code == 412
        etag = client.head(f"{PATH}/w").headers["etag"]
        stale = {"if-match": '"stale"'}
        assert client.put(f"{PATH}/w", content=b"2", headers=stale).status_code == 412
        assert client.delete(f"{PATH}/w", headers=stale).status_code == 412
        match = {"if-match": etag}
        assert client.put(f"{PATH}/w", content=b"3", headers=match).status_code == 202
        assert client.get(f"{PATH}/w").content == b"3"
    assert stack.count("versions") == 2
    assert len(stack.staged_files()) == 1, "neither refused nor overwritten bytes stay"


def test_overwrite_supersedes_and_serves_the_newer_one(stack: Stack) -> None:
    with stack.client() as client:
        first = put(client, "o", b"old").json()
        second = put(client, "o", b"new").json()
        assert (first["generation"], second["generation"]) == (1, 2)
        assert client.get(f"{PATH}/o").content == b"new"
        task = client.get(f"/tasks/{first['task_id']}").json()
        assert (task["state"], task["error_code"]) == ("cancelled", "superseded")


def test_staging_keeps_no_bytes_that_were_overwritten_or_deleted(stack: Stack) -> None:
    """However often a key is written while uploads wait, it takes the room of one."""
    with stack.client() as client:
        for number in range(5):
            put(client, "k", b"%d" % number * 100_000)
        assert len(stack.staged_files()) == 1
        assert client.get(f"{PATH}/k").content == b"4" * 100_000
        assert client.delete(f"{PATH}/k").status_code == 204
        assert stack.staged_files() == []


def test_delete_ends_the_key_and_its_work(stack: Stack) -> None:
    with stack.client() as client:
        task_id = put(client, "d").json()["task_id"]
        assert client.delete(f"{PATH}/d").status_code == 204
        gone = client.get(f"{PATH}/d")
        assert (gone.status_code, gone.json()["code"]) == (404, "object_not_found")
        assert client.delete(f"{PATH}/d").status_code == 204
        assert client.get(f"/tasks/{task_id}").json()["state"] == "cancelled"
        assert client.get(PATH).json()["items"] == []


def test_same_keys_of_two_tenants_are_two_objects(stack: Stack) -> None:
    with stack.client() as ours, stack.client(tenant=OTHER) as theirs:
        put(ours, "k", b"ours")
        assert theirs.get(f"{PATH}/k").status_code == 404
        put(theirs, "k", b"theirs")
        assert ours.get(f"{PATH}/k").content == b"ours"
        assert theirs.delete(f"{PATH}/k").status_code == 204
        assert ours.get(f"{PATH}/k").content == b"ours"


def test_listing_walks_prefixes_and_pages(stack: Stack) -> None:
    with stack.client() as client:
        for key in ("a", "b/1", "b/2", "c/d/1", "e"):
            put(client, key, key.encode())
        top = client.get(PATH, params={"delimiter": "/"}).json()
        assert [item["key"] for item in top["items"]] == ["a", "e"]
        assert top["prefixes"] == ["b/", "c/"]
        found: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = client.get(PATH, params={"limit": 2, **cursor}).json()
            found += [item["key"] for item in page["items"]]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        assert found == ["a", "b/1", "b/2", "c/d/1", "e"]
        below = client.get(PATH, params={"prefix": "b/"}).json()["items"]
        assert [item["size"] for item in below] == [3, 3]
        odd = client.get(PATH, params={"cursor": "!"})
        assert (odd.status_code, odd.json()["code"]) == (400, "cursor_invalid")
