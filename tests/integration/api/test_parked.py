"""Deletions that a channel refuses, as an operator sees them."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from shared.catalog.models import Location, utc_now
from shared.catalog.parked import count_parked
from tests.integration.api.stack import Stack

pytestmark = pytest.mark.databases("sqlite")


def test_operator_sees_what_waits_and_why(stack: Stack) -> None:
    with Session(stack.engine) as session, session.begin():
        for number, state in enumerate(("delete_failed", "stored", "delete_failed")):
            session.add(
                Location(
                    blob_id=1,
                    channel=f"disk-{number}",
                    key=f"k{number}",
                    state=state,
                    task_id=1,
                    fence=1,
                    attempt=0,
                    tries=number + 3,
                    next_try_at=utc_now(60),
                    error_detail="down",
                    created_at=utc_now(),
                )
            )
    with stack.client("admin") as admin:
        first = admin.get("/parked-deletions", params={"limit": 1}).json()
        (item,) = first["items"]
        assert (item["channel"], item["tries"], item["error_detail"]) == ("disk-0", 3, "down")
        rest = admin.get("/parked-deletions", params={"cursor": first["next_cursor"]}).json()
        assert [one["channel"] for one in rest["items"]] == ["disk-2"]
        one = admin.get("/parked-deletions", params={"channel": "disk-2"}).json()
        assert one["items"] == rest["items"]
    assert stack.client().get("/parked-deletions").status_code == 403
    with Session(stack.engine) as session:
        assert count_parked(session) == {"disk-0": 1, "disk-2": 1}
