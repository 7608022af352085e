"""Uploads in parts over HTTP: begun, sent in any order and again, completed, given up."""

from __future__ import annotations

import base64
import hashlib
import threading
from typing import Any

import httpx
import sqlalchemy as sa

from tests.integration.api.sending import CONTENT, PART, PARTS, SHA256, begin, put, send_all
from tests.integration.api.stack import BUCKET, OTHER, Stack
from tests.integration.api.working import uploading_worker
from tests.support.eventually import eventually


def test_parts_in_any_order_become_an_object(stack: Stack, redis_url: str, namespace: str) -> None:
    with uploading_worker(stack, redis_url, namespace), stack.client() as client:
        upload = begin(
            client,
            size=len(CONTENT),
            sha256=SHA256.upper(),
            content_type="video/mp4",
            metadata={"colour": "red"},
            headers={"Cache-Control": "no-store", "content-disposition": "inline"},
            expires_in_seconds=3600,
            part_bytes=PART,
        )
        assert (upload["state"], upload["part_bytes"]) == ("open", PART)
        send_all(client, upload["id"])
        first = put(client, upload["id"], 2, PARTS[1])
        assert first.headers["etag"] == f'"{hashlib.md5(PARTS[1]).hexdigest()}"'
        assert first.json()["expires_at"] > upload["expires_at"]
        there = client.get(f"/uploads/{upload['id']}").json()
        assert [(one["number"], one["size"], one["sha256"]) for one in there["parts"]] == [
            (number, len(part), hashlib.sha256(part).hexdigest())
            for number, part in enumerate(PARTS, start=1)
        ]
        assert (there["received_bytes"], there["part_count"]) == (len(CONTENT), 4)
        page = client.get(f"/uploads/{upload['id']}", params={"after": 1, "limit": 2}).json()
        assert ([one["number"] for one in page["parts"]], page["next_part"]) == ([2, 3], 3)

        accepted = client.post(f"/uploads/{upload['id']}:complete")
        assert accepted.status_code == 202, accepted.text
        assert accepted.json()["state"] == "completing"
        assert accepted.headers["location"] == f"/v1/tasks/{accepted.json()['task_id']}"

        def done() -> Any:
            answer = client.post(f"/uploads/{upload['id']}:complete")
            assert answer.status_code in (200, 202), answer.text
            return answer if answer.status_code == 200 else None

        answer = eventually(done, 20)
        result = answer.json()["result"]
        whole = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in PARTS)).hexdigest()
        assert (result["etag"], result["sha256"]) == (f"{whole}-4", SHA256)
        assert client.post(f"/uploads/{upload['id']}:complete").json() == answer.json()
        got = client.get(f"/buckets/{BUCKET}/objects/film.mp4")
        assert (got.status_code, got.content) == (200, CONTENT)
        assert got.headers["etag"] == f'"{whole}-4"'
        assert got.headers["content-type"] == "video/mp4"
        assert got.headers["x-blox-meta-colour"] == "red"
        assert got.headers["cache-control"] == "no-store"
        assert got.headers["content-disposition"] == "inline"
        assert "x-blox-expires-at" in got.headers
        assert got.headers["x-blox-version"] == str(result["version_id"])
        eventually(lambda: not stack.staged_files(), 20)
        # The operation has its result for ever after, and nothing can be added or taken away.
        assert put(client, upload["id"], 1, b"late").json()["code"] == "upload_done"
        refused = client.delete(f"/uploads/{upload['id']}")
        assert (refused.status_code, refused.json()["code"]) == (409, "upload_done")
        assert not stack.staged_files()


def test_operation_is_the_same_upload_until_it_is_another_request(stack: Stack) -> None:
    with stack.client() as client, stack.client(tenant=OTHER) as other:
        order = {"operation_id": "op-1", "bucket": BUCKET, "key": "a", "size": 5}
        first = client.post("/uploads", json=order)
        again = client.post("/uploads", json=order)
        assert (first.status_code, again.status_code) == (201, 200)
        assert again.json()["id"] == first.json()["id"]
        for change in ({"key": "b"}, {"size": 6}, {"metadata": {"x": "y"}}):
            refused = client.post("/uploads", json={**order, **change})
            assert (refused.status_code, refused.json()["code"]) == (409, "operation_mismatch")
        refused = client.post("/uploads", json=order, headers={"if-none-match": "*"})
        assert refused.json()["code"] == "operation_mismatch"
        # Another tenant has operations of its own.
        assert other.post("/uploads", json=order).status_code == 201
        answers: list[httpx.Response] = []
        threads = [
            threading.Thread(
                target=lambda: answers.append(
                    client.post("/uploads", json={**order, "operation_id": "op-2"})
                )
            )
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201]


def test_open_uploads_are_listed_and_operations_found(stack: Stack) -> None:
    with stack.client() as client, stack.client(tenant=OTHER) as other:
        begun = [begin(client, operation_id=f"op-{number}")["id"] for number in range(5)]
        begin(other)
        put(client, begun[4], 1, b"whole")
        client.post(f"/uploads/{begun[4]}:complete")
        first = client.get("/uploads", params={"limit": 3}).json()
        assert [one["id"] for one in first["items"]] == [begun[3], begun[2], begun[1]]
        rest = client.get("/uploads", params={"limit": 3, "cursor": first["next_cursor"]}).json()
        assert [one["id"] for one in rest["items"]] == [begun[0]]
        assert rest["next_cursor"] is None
        waiting = client.get("/uploads", params={"state": "completing"}).json()["items"]
        assert [(one["id"], one["bucket"]) for one in waiting] == [(begun[4], BUCKET)]
        found = client.get("/uploads", params={"operation_id": "op-4"}).json()["items"]
        assert [one["id"] for one in found] == [begun[4]]
        assert other.get("/uploads", params={"operation_id": "op-4"}).json()["items"] == []
        assert client.get("/uploads", params={"state": "odd"}).status_code == 422


def test_what_cannot_be_meant_is_refused(stack: Stack) -> None:
    order = {"operation_id": "x", "bucket": BUCKET, "key": "a"}
    with stack.client() as client:
        for change, status, code in (
            ({"operation_id": " x"}, 400, "operation_id_invalid"),
            ({"operation_id": "a\nb"}, 400, "operation_id_invalid"),
            ({"operation_id": "x" * 192}, 422, "validation"),
            ({"key": "a/../b"}, 400, "key_invalid"),
            ({"bucket": "no-such"}, 404, "bucket_not_found"),
            ({"size": -1}, 422, "validation"),
            ({"sha256": "short"}, 422, "validation"),
            ({"part_bytes": 1000}, 400, "part_bytes_invalid"),
            ({"content_type": "a\nb"}, 400, "content_type_invalid"),
            ({"metadata": {"http.set-cookie": "a"}}, 400, "metadata_invalid"),
            ({"headers": {"set-cookie": "a"}}, 400, "metadata_invalid"),
            ({"expires_at": "2020-01-01T00:00:00Z"}, 400, "expiry_invalid"),
        ):
            answer = client.post("/uploads", json={**order, **change})
            assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        answer = client.post("/uploads", json=order, headers={"if-match": "a b"})
        assert answer.json()["code"] == "condition_invalid"
        assert stack.count("upload_sessions") == 0


def test_another_tenant_sees_nothing_of_it(stack: Stack) -> None:
    with (
        stack.client() as client,
        stack.client(tenant=OTHER) as other,
        stack.client("objects:read") as reader,
    ):
        upload = begin(client)["id"]
        put(client, upload, 1, b"hello")
        for answer in (
            other.get(f"/uploads/{upload}"),
            put(other, upload, 1, b"evil"),
            other.post(f"/uploads/{upload}:complete"),
            other.delete(f"/uploads/{upload}"),
            client.get("/uploads/no-such-upload"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, "upload_not_found")
        for answer in (
            reader.post("/uploads", json={"operation_id": "x", "bucket": BUCKET, "key": "a"}),
            put(reader, upload, 1, b"evil"),
            reader.delete(f"/uploads/{upload}"),
        ):
            assert answer.status_code == 403
        assert client.get(f"/uploads/{upload}").json()["received_bytes"] == 5
        assert len(stack.staged_files()) == 1


def test_promise_that_does_not_hold_leaves_nothing(stack: Stack) -> None:
    wrong_md5 = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    with stack.client() as client:
        upload = begin(client)["id"]
        for headers, code in (
            ({"content-md5": wrong_md5}, "md5_mismatch"),
            ({"x-blox-sha256": "0" * 64}, "sha256_mismatch"),
            ({"x-blox-size": "4", "content-length": "5"}, "size_mismatch"),
        ):
            for content in (b"hello", PARTS[0]):
                sized = {**headers, "content-length": str(len(content))}
                answer = put(client, upload, 1, content, **sized)
                assert (answer.status_code, answer.json()["code"]) == (400, code)
        for number in (0, -1, 10_001):
            answer = put(client, upload, number, b"x")
            assert answer.json()["code"] == "part_number_invalid"
        assert put(client, upload, "one", b"x").status_code == 422  # type: ignore[arg-type]
        assert client.get(f"/uploads/{upload}").json()["parts"] == []
        assert not stack.staged_files()


def test_completion_says_what_is_wrong_and_can_be_mended(stack: Stack) -> None:
    with stack.client() as client:
        upload = begin(client, size=len(CONTENT))["id"]
        complete = f"/uploads/{upload}:complete"
        assert client.post(complete).json()["code"] == "part_missing"
        put(client, upload, 1, PARTS[0])
        put(client, upload, 3, PARTS[2])
        missing = client.post(complete).json()
        assert (missing["code"], missing["number"]) == ("part_missing", 2)
        put(client, upload, 2, PARTS[1][:10])
        put(client, upload, 4, PARTS[3])
        assert client.post(complete).json()["code"] == "part_too_small"
        put(client, upload, 2, PARTS[1] + b"!")
        assert client.post(complete).json()["code"] == "size_mismatch"
        put(client, upload, 2, PARTS[1])
        named = [{"number": n, "etag": f'"{hashlib.md5(p).hexdigest()}"'}
                 for n, p in enumerate(PARTS, start=1)]  # fmt: skip
        wrong = [{**named[0], "sha256": "0" * 64}, *named[1:]]
        assert client.post(complete, json={"parts": wrong}).json()["code"] == "part_mismatch"
        assert client.get(f"/uploads/{upload}").json()["state"] == "open"
        answer = client.post(complete, json={"parts": named, "sha256": SHA256})
        assert answer.status_code == 202, answer.text
        again = client.post(complete, json={"parts": named, "sha256": SHA256})
        assert (again.status_code, again.json()) == (202, answer.json())
        other = client.post(complete, json={"parts": named[:2]})
        assert (other.status_code, other.json()["code"]) == (409, "complete_mismatch")
        assert put(client, upload, 1, PARTS[0]).json()["code"] == "upload_completing"
        assert stack.count("tasks") == 1


def test_failure_is_told_and_stays(stack: Stack, redis_url: str, namespace: str) -> None:
    with uploading_worker(stack, redis_url, namespace), stack.client() as client:
        upload = begin(client, sha256="0" * 64)["id"]
        send_all(client, upload)
        assert client.post(f"/uploads/{upload}:complete").status_code == 202
        eventually(lambda: client.get(f"/uploads/{upload}").json()["state"] == "failed", 20)
        assert client.get(f"/uploads/{upload}").json()["error"]["code"] == "sha256_mismatch"
        for _ in range(2):
            told = client.post(f"/uploads/{upload}:complete")
            assert (told.status_code, told.json()["code"]) == (409, "upload_failed")
            assert told.json()["error"]["code"] == "sha256_mismatch"
        assert client.get(f"/buckets/{BUCKET}/objects/film.mp4").status_code == 404
        assert client.delete(f"/uploads/{upload}").status_code == 204
        assert not stack.staged_files()


def test_giving_up_removes_everything(stack: Stack) -> None:
    with stack.client() as client:
        order = {"operation_id": "op", "bucket": BUCKET, "key": "a"}
        upload = client.post("/uploads", json=order).json()["id"]
        send_all(client, upload)
        assert client.post(f"/uploads/{upload}:complete").status_code == 202
        assert client.delete(f"/uploads/{upload}").status_code == 204
        assert client.get(f"/uploads/{upload}").status_code == 404
        assert client.delete(f"/uploads/{upload}").status_code == 404
        assert (stack.count("upload_sessions"), stack.count("upload_parts")) == (0, 0)
        assert not stack.staged_files()
        with stack.engine.connect() as connection:
            query = sa.text("SELECT state FROM tasks")
            assert connection.execute(query).scalars().all() == ["cancelled"]
        assert client.post("/uploads", json=order).status_code == 201
