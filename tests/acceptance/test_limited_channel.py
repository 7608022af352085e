"""An operator limits a channel in use: uploads wait before it, visibly, and get through."""

from __future__ import annotations

import httpx

from tests.acceptance.product import PATIENCE, Product, Tenant, random_bytes
from tests.support.eventually import eventually

MIB = 1024 * 1024


def test_uploads_wait_before_a_full_channel_and_get_through(
    product: Product, tenant: Tenant
) -> None:
    with httpx.Client(
        base_url=f"{product.stack.api_url}/v1",
        headers={"authorization": f"Bearer {product.stack.admin_key}"},
        timeout=PATIENCE,
    ) as admin:
        listed = admin.get("/channels").raise_for_status().json()["items"]
        (slow,) = (item for item in listed if item["name"] == "slow")
        order = {name: slow[name] for name in ("kind", "region", "is_enabled")}
        wrong = {**order, "settings": {**slow["settings"], "max_running": -1}}
        refused = admin.put("/channels/slow", json=wrong)
        assert (refused.status_code, "max_running" in refused.text) == (400, True)
        limited = {**order, "settings": {**slow["settings"], "max_running": 1}}
        admin.put("/channels/slow", json=limited).raise_for_status()
        try:
            tenant.bucket("limited", "slow")
            # A second each, at the channel's bandwidth.
            tasks = [tenant.put(f"limited/{n}", random_bytes(MIB))["task_id"] for n in range(3)]

            def parked() -> list[str]:
                found = [tenant.task(task_id) for task_id in tasks]
                return [task["resource_key"] for task in found if task["state"] == "blocked"]

            assert set(eventually(parked, PATIENCE)) == {"channel:slow"}
            ended = [tenant.ended(task_id) for task_id in tasks]
        finally:
            admin.put("/channels/slow", json={**order, "settings": slow["settings"]})
    assert [task["state"] for task in ended] == ["completed"] * 3
    assert [task["attempt"] for task in ended] == [1] * 3
    told = {event["type"] for task in ended for event in task["events"]}
    assert "parked" in told
