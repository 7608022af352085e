"""Tasks, audit, nodes and administration over HTTP."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools

import httpx

from tests.integration.api.stack import BUCKET, OTHER, TENANT, Stack
from tests.support.catalogue import together
from tests.support.eventually import eventually

PATH = f"/buckets/{BUCKET}/objects"


def put(client: httpx.Client, key: str) -> int:
    answer = client.put(f"{PATH}/{key}", content=key.encode())
    assert answer.status_code == 202, answer.text
    return int(answer.json()["task_id"])


def ids(client: httpx.Client, **params: object) -> list[int]:
    answer = client.get("/tasks", params=params)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


def test_list_pages_newest_first_and_filters(stack: Stack) -> None:
    before = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=10)
    with stack.client() as client:
        made = [put(client, f"k{number}") for number in range(5)]
        assert ids(client) == made[::-1]
        page = client.get("/tasks", params={"limit": 2}).json()
        assert [item["id"] for item in page["items"]] == made[:2:-1]
        assert ids(client, limit=3, cursor=page["next_cursor"]) == made[2::-1]
        assert client.get("/tasks", params={"limit": 5}).json()["next_cursor"] is None
        client.post(f"/tasks/{made[1]}:cancel")
        assert ids(client, state="cancelled") == [made[1]]
        assert ids(client, queue="upload") == made[::-1]
        assert ids(client, queue="review") == []
        assert ids(client, kind="upload.store", limit=1) == [made[4]]
        assert ids(client, since=before.isoformat()) == made[::-1]
        later = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=10)
        assert ids(client, since=later.isoformat()) == []


def test_task_shows_its_payload_and_history(stack: Stack) -> None:
    with stack.client() as client:
        task_id = put(client, "k")
        answer = client.get(f"/tasks/{task_id}")
        assert answer.headers["cache-control"] == "no-store"
        task = answer.json()
        assert (task["kind"], task["tenant_id"], task["attempt"]) == ("upload.store", TENANT, 0)
        assert set(task["payload"]) == {"version_id", "blob_id"}
        assert task["created_at"].endswith("Z")
        client.post(f"/tasks/{task_id}:cancel", json={"reason": "a mistake"})
        types = [event["type"] for event in client.get(f"/tasks/{task_id}").json()["events"]]
        assert "cancelled" in " ".join(types)


def test_cancel_and_retry_are_audited(stack: Stack) -> None:
    with stack.client() as client:
        task_id = put(client, "k")
        cancelled = client.post(f"/tasks/{task_id}:cancel", json={"reason": "a mistake"})
        assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
        again = client.post(f"/tasks/{task_id}:cancel")
        assert (again.status_code, again.json()["state"]) == (200, "cancelled")
        # Acknowledged bytes stay readable when their upload was cancelled.
        assert client.get(f"{PATH}/k").content == b"k"
        assert client.head(f"{PATH}/k").headers["x-blox-state"] == "failed"
        retried = client.post(f"/tasks/{task_id}:retry", json={"reason": "not a mistake"})
        assert (retried.status_code, retried.json()["state"]) == (200, "pending")
        assert client.head(f"{PATH}/k").headers["x-blox-state"] == "pending"
        refused = client.post(f"/tasks/{task_id}:retry")
        assert refused.status_code == 409
        audit = client.get("/audit", params={"task": task_id}).json()["items"]
        assert [(row["action"], row["reason"]) for row in audit] == [
            ("retry", "not a mistake"),
            ("cancel", "a mistake"),
        ]
        assert all(row["actor"] == f"{TENANT}/test" for row in audit)


def test_post_with_an_idempotency_key_is_done_once(stack: Stack) -> None:
    with stack.client() as client:
        task_id = put(client, "k")
        key = {"idempotency-key": "once"}
        client.post(f"/tasks/{task_id}:cancel")
        first = client.post(f"/tasks/{task_id}:retry", headers=key)
        assert first.status_code == 200, first.text
        second = client.post(f"/tasks/{task_id}:retry", headers=key)
        assert (second.status_code, second.json()) == (200, first.json())
        other = client.post(f"/tasks/{task_id}:cancel", headers=key)
        assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")
        body = client.post(f"/tasks/{task_id}:retry", headers=key, json={"reason": "other"})
        assert body.status_code == 409
        retries = [r for r in client.get("/audit").json()["items"] if r["action"] == "retry"]
        assert len(retries) == 1
        bad = client.post(f"/tasks/{task_id}:retry", headers={"idempotency-key": "x" * 192})
        assert (bad.status_code, bad.json()["code"]) == (400, "idempotency_key_invalid")


def test_same_post_many_times_at_once_has_one_answer(stack: Stack) -> None:
    """A client that gave up waiting sends it again while the first is under way."""
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(stack.client()) for _ in range(6)]
        task_id = put(clients[0], "k")
        clients[0].post(f"/tasks/{task_id}:cancel")

        def retry(client: httpx.Client) -> tuple[int, str]:
            answer = client.post(f"/tasks/{task_id}:retry", headers={"idempotency-key": "same"})
            return answer.status_code, answer.text

        answers = together(*(functools.partial(retry, client) for client in clients))
        assert {status for status, _ in answers} == {200}, answers
        assert len(set(answers)) == 1
        retries = [r for r in clients[0].get("/audit").json()["items"] if r["action"] == "retry"]
        assert len(retries) == 1


def test_another_tenants_task_is_not_found(stack: Stack) -> None:
    with stack.client() as ours, stack.client(tenant=OTHER) as theirs:
        task_id = put(ours, "k")
        for answer in (
            theirs.get(f"/tasks/{task_id}"),
            theirs.post(f"/tasks/{task_id}:cancel"),
            theirs.post(f"/tasks/{task_id}:retry"),
            ours.get("/tasks/999999999"),
        ):
            assert answer.status_code == 404, answer.text
        assert ids(theirs) == []
        assert theirs.get("/audit").json()["items"] == []
        refused = theirs.get("/tasks", params={"tenant": TENANT})
        assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing")
        assert ours.get(f"/tasks/{task_id}").json()["state"] != "cancelled"


def test_admin_sees_all_tenants(stack: Stack) -> None:
    with stack.client() as ours, stack.client("admin", tenant=OTHER) as admin:
        task_id = put(ours, "k")
        assert admin.get(f"/tasks/{task_id}").json()["tenant_id"] == TENANT
        assert ids(admin) == [task_id]
        assert ids(admin, tenant=OTHER) == []
        assert admin.post(f"/tasks/{task_id}:cancel").json()["state"] == "cancelled"
        nodes = eventually(lambda: admin.get("/nodes").json()["items"])
        assert nodes[0]["role"] == "producer"


def test_admin_makes_tenants_keys_and_channels(stack: Stack) -> None:
    with stack.client("admin") as admin:
        made = admin.post("/tenants", json={"id": "hooli", "name": "Hooli"})
        assert (made.status_code, made.json()["id"]) == (201, "hooli")
        assert admin.post("/tenants", json={"id": "hooli"}).status_code == 409
        assert admin.post("/tenants", json={"id": "No!"}).json()["code"] == "tenant_invalid"
        assert "hooli" in [item["id"] for item in admin.get("/tenants").json()["items"]]

        order = {"scopes": ["buckets:write", "buckets:read"], "label": "ci"}
        once = {"idempotency-key": "key-1"}
        key = admin.post("/tenants/hooli/keys", json=order, headers=once).json()
        assert key["secret"].startswith("blox_")
        repeated = admin.post("/tenants/hooli/keys", json=order, headers=once).json()
        assert repeated == {**key, "secret": None}
        assert admin.post("/tenants/nobody/keys", json=order).status_code == 404
        assert admin.post("/tenants/hooli/keys", json={"scopes": ["all"]}).status_code == 400

        root = str(stack.channel_root.parent / "disk-2")
        channel = {"kind": "file", "settings": {"root": root}, "credentials": {}}
        answer = admin.put("/channels/disk-2", json=channel)
        assert (answer.status_code, answer.json()["is_enabled"]) == (200, True), answer.text
        odd = admin.put("/channels/disk-3", json={"kind": "tape"})
        assert odd.status_code == 400
        assert [item["name"] for item in admin.get("/channels").json()["items"]] == [
            "disk-1",
            "disk-2",
        ]

        theirs = httpx.Client(
            base_url=admin.base_url, headers={"authorization": f"Bearer {key['secret']}"}
        )
        with theirs:
            rules = {"channels": ["disk-2", "disk-1"]}
            assert theirs.put("/buckets/logs", json=rules).status_code == 201
            assert theirs.put("/buckets/logs", json=rules).status_code == 200
            unknown = theirs.put("/buckets/logs", json={"channels": ["nowhere"]})
            assert (unknown.status_code, unknown.json()["code"]) == (400, "channel_unknown")
            assert theirs.get("/buckets/logs").json()["channels"] == ["disk-2", "disk-1"]
            assert [item["name"] for item in theirs.get("/buckets").json()["items"]] == ["logs"]
            assert admin.delete("/channels/disk-2").status_code == 409
            revoked = admin.delete(f"/tenants/hooli/keys/{key['id']}")
            assert revoked.status_code == 204
            refused = theirs.get("/buckets/logs")
            assert (refused.status_code, refused.json()["code"]) == (401, "key_revoked")
        assert "secret" not in admin.get("/tenants/hooli/keys").text


def test_bucket_that_holds_something_is_kept(stack: Stack) -> None:
    with stack.client() as client:
        put(client, "k")
        refused = client.delete(f"/buckets/{BUCKET}")
        assert (refused.status_code, refused.json()["code"]) == (409, "bucket_not_empty")
        client.delete(f"{PATH}/k")
        assert client.delete(f"/buckets/{BUCKET}").status_code == 204
        assert client.get(f"/buckets/{BUCKET}").status_code == 404


def test_wrong_method_names_the_right_ones(stack: Stack) -> None:
    with stack.client() as client:
        for path, methods in (
            (f"{PATH}/a/b", "DELETE, GET, HEAD, PUT"),
            (f"/buckets/{BUCKET}", "DELETE, GET, PUT"),
            ("/tasks/1", "GET"),
            ("/tasks/1:cancel", "POST"),
        ):
            answer = client.patch(path)
            assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
            assert answer.headers["allow"].endswith(methods), (path, answer.headers["allow"])
        assert client.get("/nowhere").json()["code"] == "no_such_route"


def test_openapi_describes_every_route(stack: Stack) -> None:
    document = httpx.get(f"{stack.address.url}/openapi.json").json()
    # Reviewers elsewhere have no key of ours: what they send and read is signed.
    signed = {"/v1/review-callbacks/{step}", "/v1/review-content/{step}"}
    operations = [
        operation
        for path, methods in document["paths"].items()
        if path.startswith("/v1/") and path not in signed
        for operation in methods.values()
    ]
    assert len(operations) > 25
    for operation in operations:
        assert operation["summary"], operation
        assert "Scope `" in operation["description"], operation
        assert "application/problem+json" in operation["responses"]["default"]["content"]
        assert operation["security"] == [{"API key": []}]
    put_object = document["paths"]["/v1/buckets/{bucket}/objects/{key}"]["put"]
    assert "application/octet-stream" in put_object["requestBody"]["content"]
    assert httpx.get(f"{stack.address.url}/docs").status_code == 200
