"""What a customer does with objects, and what another S3 client finds on the channel then."""

from __future__ import annotations

import hashlib

from tests.acceptance.product import PART_BYTES, PATIENCE, Product, Tenant, random_bytes
from tests.support.eventually import eventually


def test_what_is_put_is_read_by_another_client_from_the_channel(
    product: Product, tenant: Tenant
) -> None:
    small, large = random_bytes(1000), random_bytes(2 * PART_BYTES + 1000)
    for key, content in (("small.bin", small), ("ordner/größe 1.bin", large), ("empty", b"")):
        before = set(product.keys_on("main", tenant))
        answer = tenant.put(f"files/{key}", content)
        assert answer["state"] == "pending"
        assert answer["etag"] == hashlib.md5(content).hexdigest()
        # Readable at once, from staging.
        assert tenant.get(f"files/{key}").content == content
        task = tenant.ended(answer["task_id"])
        assert (task["state"], task["result"]["channel"]) == ("completed", "main"), task
        (physical,) = set(product.keys_on("main", tenant)) - before
        assert product.content("main", physical) == content
        assert tenant.state(f"files/{key}") == "stored"
        assert tenant.get(f"files/{key}").content == content
    (multipart,) = (
        item
        for item in product.s3.list_objects_v2(
            Bucket=product.buckets["main"], Prefix=f"{tenant.name}/"
        )["Contents"]
        if item["Size"] == len(large)
    )
    assert multipart["ETag"].strip('"').endswith("-3"), "sent in three parts"
    assert product.s3.list_multipart_uploads(Bucket=product.buckets["main"]).get("Uploads") is None


def test_reads_of_parts_and_conditions(tenant: Tenant) -> None:
    content = random_bytes(300_000)
    tenant.store("files/a", content)
    part = tenant.get("files/a", range="bytes=1000-1999")
    assert (part.status_code, part.content) == (206, content[1000:2000])
    tail = tenant.get("files/a", range="bytes=-5")
    assert (tail.status_code, tail.content) == (206, content[-5:])
    assert tenant.get("files/a", range="bytes=300000-").status_code == 416
    etag = part.headers["etag"]
    assert tenant.get("files/a", **{"if-none-match": etag}).status_code == 304
    assert tenant.get("files/a", **{"if-match": '"other"'}).status_code == 412


def test_an_overwrite_takes_the_old_bytes_away_after_the_grace(
    product: Product, tenant: Tenant
) -> None:
    tenant.store("files/a", random_bytes(2000))
    (old,) = product.keys_on("main", tenant)
    new = random_bytes(3000)
    tenant.store("files/a", new)
    assert tenant.get("files/a").content == new
    eventually(lambda: old not in product.keys_on("main", tenant), PATIENCE, interval_seconds=0.1)
    assert len(product.keys_on("main", tenant)) == 1
    assert tenant.get("files/a").content == new


def test_a_delete_takes_the_name_at_once_and_the_bytes_after_the_grace(
    product: Product, tenant: Tenant
) -> None:
    tenant.store("files/a", random_bytes(2000))
    tenant.store("files/b", random_bytes(1000))
    assert len(product.keys_on("main", tenant)) == 2
    tenant.delete("files/a")
    assert tenant.get("files/a").status_code == 404
    listed = tenant.http.get("/buckets/files/objects").json()["items"]
    assert [item["key"] for item in listed] == ["b"]
    eventually(lambda: len(product.keys_on("main", tenant)) == 1, PATIENCE, interval_seconds=0.1)
    assert tenant.get("files/b").status_code == 200


def test_known_content_is_stored_at_once_and_only_once(product: Product, tenant: Tenant) -> None:
    content = random_bytes(5000)
    tenant.store("files/a", content)
    again = tenant.put("files/b", content)
    assert (again["state"], again["task_id"]) == ("stored", None)
    order = {"key": "c", "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    instant = tenant.http.post("/buckets/files/instant-uploads", json=order)
    assert instant.status_code in (200, 201), instant.text
    assert len(product.keys_on("main", tenant)) == 1
    for key in "abc":
        assert tenant.get(f"files/{key}").content == content
    # The bytes stay as long as one name needs them.
    tenant.delete("files/a")
    tenant.delete("files/b")
    assert tenant.get("files/c").content == content
    order["sha256"] = hashlib.sha256(random_bytes(5000)).hexdigest()
    unknown = tenant.http.post("/buckets/files/instant-uploads", json=order)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "content_unknown")


def test_one_tenant_sees_nothing_of_another(product: Product, tenant: Tenant) -> None:
    content = random_bytes(1000)
    task = tenant.store("files/a", content)
    other = Tenant(product.stack)
    with other.http:
        other.bucket("files")
        assert other.get("files/a").status_code == 404
        assert other.http.get(f"/tasks/{task['id']}").status_code == 404
        # Not even that the content is known: it is stored once more, under their own prefix.
        assert other.put("files/a", content)["state"] == "pending"
