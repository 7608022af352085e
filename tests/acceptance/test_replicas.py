"""Copies on another channel, as a customer and a foreign S3 client see them."""

from __future__ import annotations

import pytest

from tests.acceptance.product import PART_BYTES, PATIENCE, Product, Tenant, random_bytes
from tests.support.eventually import eventually

pytestmark = pytest.mark.needs_root


def test_copies_come_serve_reads_and_heal(product: Product, tenant: Tenant) -> None:
    tenant.bucket("copied", "main", replica_channels=["spare"])
    contents = {"small": random_bytes(1000), "large": random_bytes(2 * PART_BYTES + 1)}
    for key, content in contents.items():
        tenant.store(f"copied/{key}", content)

    def copies() -> list[bytes]:
        return [product.content("spare", key) for key in product.keys_on("spare", tenant)]

    def is_quiet() -> bool:
        waiting: list[object] = tenant.http.get("/replicas").json()["items"]
        return waiting == []

    eventually(is_quiet, PATIENCE, interval_seconds=0.1, message="all copies are made")
    assert {bytes(one) for one in copies()} >= set(contents.values())
    (rule,) = tenant.http.get("/buckets/copied/replicas").json()["items"]
    assert (rule["channel"], rule["pending"], rule["failed"]) == ("spare", 0, 0)

    (lost,) = (
        key
        for key in product.keys_on("main", tenant)
        if product.content("main", key) == contents["large"]
    )
    product.s3.delete_object(Bucket=product.buckets["main"], Key=lost)
    assert tenant.get("copied/large").content == contents["large"]

    def is_healed() -> bool:
        keys = set(product.keys_on("main", tenant)) - {lost}
        return any(product.content("main", key) == contents["large"] for key in keys)

    eventually(is_healed, PATIENCE, interval_seconds=0.2, message="the read's finding is repaired")
    eventually(is_quiet, PATIENCE, interval_seconds=0.1)
    assert tenant.get("copied/large").content == contents["large"]
