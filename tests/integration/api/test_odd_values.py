"""Values that a column, a driver or a clock could choke on: never our fault, nothing stored."""

from __future__ import annotations

import itertools

import httpx

from tests.integration.api.stack import BUCKET, Stack

ODD = ["日本", "é", "\0", "a\nb", "%", "'", '"', "x" * 60, "..", "\u202e", "😀"]
NUMBERS = ["0", "-1", "9223372036854775807", "9223372036854775808", "1" * 40, "1.5", "NaN", "٣"]
TIMES = [
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "0001-01-01T00:00:00",
    "2024-02-30T00:00:00Z",
    "1e400",
    "-1",
    "99999999999999999",
]


def test_odd_values_are_never_our_fault(stack: Stack) -> None:
    with stack.client("admin", "objects:read") as client:
        answers = [*_in_queries(client), *_in_paths(client), *_in_bodies(client)]
    broken = {_name(answer) for answer in answers if answer.is_server_error}
    assert broken == set()
    for answer in answers:
        if answer.is_client_error:
            assert answer.headers["content-type"] == "application/problem+json", answer.request.url
    assert stack.is_untouched()
    assert stack.count("channels") == 1


def _name(answer: httpx.Response) -> str:
    request = answer.request
    return f"{request.method} {request.url} {request.content[:100]!r}: {answer.status_code}"


def _in_queries(client: httpx.Client) -> list[httpx.Response]:
    cases: list[tuple[str, str, list[str]]] = [
        ("/tasks", "queue", ODD),
        ("/tasks", "kind", ODD),
        ("/tasks", "tenant", ODD),
        ("/tasks", "state", ODD),
        ("/tasks", "cursor", NUMBERS),
        ("/tasks", "limit", NUMBERS),
        ("/tasks", "since", TIMES),
        ("/audit", "tenant", ODD),
        ("/audit", "task", NUMBERS),
        ("/reviews", "state", ODD),
        ("/reviews", "cursor", NUMBERS),
        ("/buckets", "cursor", ODD),
        ("/tenants", "cursor", ODD),
        (f"/buckets/{BUCKET}/objects", "prefix", ODD),
        (f"/buckets/{BUCKET}/objects", "delimiter", ODD),
        (f"/buckets/{BUCKET}/objects", "cursor", ODD),
        (f"/buckets/{BUCKET}/objects", "limit", NUMBERS),
    ]
    return [
        client.get(path, params={name: value}) for path, name, values in cases for value in values
    ]


def _in_paths(client: httpx.Client) -> list[httpx.Response]:
    answers = []
    for value in ODD:
        quoted = "".join(f"%{byte:02X}" for byte in value.encode())
        answers += [
            client.get(f"/buckets/{quoted}"),
            client.get(f"/buckets/{quoted}/objects/k"),
            client.put(f"/buckets/{quoted}/objects/k", content=b"x"),
            client.put(f"/buckets/{quoted}", json={"channels": ["disk-1"], "region": "x" * 99}),
            client.delete(f"/buckets/{quoted}"),
            client.get(f"/tenants/{quoted}/keys"),
            client.post(f"/tenants/{quoted}/keys", json={"scopes": ["admin"]}),
            client.put(f"/channels/{quoted}", json={"kind": "file", "settings": {"root": "x"}}),
            client.delete(f"/channels/{quoted}"),
            client.get(f"/tasks/{quoted}"),
        ]
    for value in NUMBERS:
        answers += [
            client.get(f"/tasks/{value}"),
            client.post(f"/tasks/{value}:cancel"),
            client.post(f"/tasks/{value}:retry"),
            client.get(f"/reviews/{value}"),
            client.post(f"/reviews/{value}:approve"),
            client.delete(f"/tenants/acme/keys/{value}"),
        ]
    return answers


def _in_bodies(client: httpx.Client) -> list[httpx.Response]:
    answers = []
    texts = [*ODD, "\\ud800"]
    for value in texts:
        root = {"root": "/nowhere/" + value.replace("\0", "")}
        for path, body in (
            ("/buckets/odd", {"channels": [value]}),
            ("/buckets/odd", {"channels": ["disk-1"], "region": value}),
            ("/channels/odd", {"kind": value}),
            ("/channels/odd", {"kind": "file", "region": value, "settings": {}}),
            ("/channels/odd", {"kind": "file", "settings": {value: value, **root}}),
            ("/channels/odd", {"kind": "s3", "credentials": {value: value}}),
        ):
            answers.append(client.put(path, json=body))
        answers += [
            client.post("/tenants", json={"id": value}),
            client.post("/tenants/acme/keys", json={"scopes": [value], "label": value}),
            client.post("/tasks/1:cancel", json={"reason": value}),
            client.post("/tasks/1:cancel", headers={b"idempotency-key": value.encode()[:30]})
            if "\n" not in value and "\0" not in value
            else client.get("/nodes"),
            client.post(
                f"/buckets/{BUCKET}/instant-uploads",
                json={"key": value, "sha256": "0" * 64, "size": 1, "content_type": value},
            ),
        ]
    for raw in ('{"id": "\\ud800"}', '{"id": 1e999}', "[" * 5000, '{"id": "a"', "null", '"x"'):
        headers = {"content-type": "application/json"}
        answers.append(client.post("/tenants", content=raw.encode(), headers=headers))
    for size, scopes in itertools.product((-1, 2**63, 1e300), ([], None, "admin", {"a": 1})):
        order = {"key": "k", "sha256": "0" * 64, "size": size}
        answers.append(client.post(f"/buckets/{BUCKET}/instant-uploads", json=order))
        answers.append(client.post("/tenants/acme/keys", json={"scopes": scopes}))
    for moment in TIMES:
        key = {"scopes": ["admin"], "expires_at": moment}
        answers.append(client.post("/tenants/nobody/keys", json=key))
    return answers
