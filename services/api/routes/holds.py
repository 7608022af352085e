"""Holds: content that stays whatever happens to its name."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse
from pydantic import Field
from sqlalchemy.orm import Session

from services.api.auth import actor
from services.api.deps import CallerDep
from services.api.idempotency import Answer, TicketDep
from services.api.json_route import JsonRoute
from services.api.paging import PagingDep
from services.api.posts import write_once
from services.api.routes.puts import BucketName
from services.api.routes.tasks import visible_tenant
from services.api.views import (
    MAX_ID,
    OrderBody,
    PageView,
    Time,
    View,
    to_naive_utc,
)
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket
from shared.catalog.holds import find_hold, place_hold, release_hold
from shared.catalog.models import Bucket, Hold, HoldState, ObjectRow, Version

router = APIRouter(tags=["objects"], route_class=JsonRoute)

HoldId = Annotated[int, Path(ge=1, le=MAX_ID, description="The hold's id.")]


class HoldOrder(OrderBody):
    """What to hold, why, and for how long."""

    key: str = Field(max_length=1024)
    reason: str = Field(min_length=1, max_length=512)
    until: dt.datetime | None = Field(None, description="When it ends by itself; null: never.")


class HoldView(View):
    """A hold and the content that it keeps."""

    id: int
    tenant_id: str
    bucket: str | None = Field(description="Null once the bucket is deleted.")
    key: str
    version_id: int
    sha256: str
    size: int
    state: str = Field(description="`active`, `released` or `expired`.")
    reason: str
    until: Time | None
    created_by: str
    ended_by: str | None
    created_at: Time
    ended_at: Time | None


@router.post(
    "/buckets/{bucket}/holds", summary="Hold an object", status_code=201, response_model=HoldView
)
async def post_hold(
    caller: CallerDep, bucket: BucketName, order: HoldOrder, ticket: TicketDep
) -> JSONResponse:
    """Keep the content that a key has now: its bytes stay, and the key cannot be deleted.

    An overwrite is possible; the held content then comes back by an instant upload of its SHA-256.
    A 409 with Retry-After while it is not stored yet. Scope `holds:write`.
    """

    def work(session: Session, principal: Principal) -> Answer:
        found = get_bucket(session, principal.tenant_id, bucket)
        hold = place_hold(
            session,
            found.id,
            order.key,
            reason=order.reason,
            until=to_naive_utc(order.until),
            by=actor(principal),
        )
        session.refresh(hold)
        return Answer(201, _view(session, hold).model_dump(mode="json"))

    return await write_once(caller, "holds:write", ticket, work)


@router.get("/holds", summary="List holds, newest first")
async def get_holds(
    caller: CallerDep,
    paging: PagingDep,
    state: Annotated[HoldState, Query(description="Those in this state.")] = HoldState.ACTIVE,
) -> PageView[HoldView]:
    """Holds of the key's tenant; an admin sees every tenant's. Scope `holds:read`."""

    def work(session: Session, principal: Principal) -> list[HoldView]:
        tenant = visible_tenant(principal, None)
        where = [Hold.state == state]
        if tenant is not None:
            where.append(Hold.tenant_id == tenant)
        return _views(session, paging.newest(session, Hold, *where))

    return paging.show(await caller.read("holds:read", work), HoldView)


@router.get("/holds/{hold_id}", summary="Show a hold")
async def get_hold(caller: CallerDep, hold_id: HoldId) -> HoldView:
    """A hold, also one that is over. Scope `holds:read`."""

    def work(session: Session, principal: Principal) -> HoldView:
        return _view(
            session, find_hold(session, hold_id, tenant_id=visible_tenant(principal, None))
        )

    return await caller.read("holds:read", work)


@router.delete("/holds/{hold_id}", summary="Release a hold")
async def delete_hold(caller: CallerDep, hold_id: HoldId) -> HoldView:
    """End a hold; content that nothing else needs goes after the grace. Scope `holds:write`.

    One that has ended already is shown as it is.
    """

    def work(session: Session, principal: Principal) -> HoldView:
        hold = release_hold(
            session,
            caller.api.deps.catalogue,
            hold_id,
            tenant_id=visible_tenant(principal, None),
            by=actor(principal),
        )
        return _view(session, hold)

    return await caller.write("holds:write", work)


def _view(session: Session, hold: Hold) -> HoldView:
    return _views(session, [hold])[0]


def _views(session: Session, holds: Sequence[Hold]) -> list[HoldView]:
    """Return what is shown of holds, with what they keep, read at once for all of them."""
    kept = {
        version_id: {"bucket": bucket, "key": key, "sha256": sha256, "size": size}
        for version_id, bucket, key, sha256, size in session.execute(
            sa.select(Version.id, Bucket.name, ObjectRow.key, Version.sha256, Version.size_bytes)
            .join(ObjectRow, ObjectRow.id == Version.object_id)
            .outerjoin(Bucket, Bucket.id == Version.bucket_id)
            .where(Version.id.in_({hold.version_id for hold in holds}))
        )
    }
    own = HoldView.model_fields.keys() - {"bucket", "key", "sha256", "size"}
    return [
        HoldView(**kept[hold.version_id], **{name: getattr(hold, name) for name in own})
        for hold in holds
    ]
