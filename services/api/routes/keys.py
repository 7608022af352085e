"""API keys of a tenant: make, list, revoke."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from services.api.deps import CallerDep
from services.api.idempotency import Answer, TicketDep
from services.api.json_route import JsonRoute
from services.api.posts import write_once
from services.api.views import MAX_ID, NAME_PATTERN, OrderBody, Time, View, to_naive_utc
from shared.catalog.accounts import ADMIN, Principal, create_key, list_keys, revoke_key
from shared.catalog.models import ApiKey

router = APIRouter(tags=["admin"], route_class=JsonRoute)

TenantId = Annotated[str, Path(max_length=64, pattern=NAME_PATTERN, description="The tenant's id.")]


class NewKeyOrder(OrderBody):
    """A key to be made."""

    scopes: list[str] = Field(min_length=1, max_length=16, description="Such as `objects:read`.")
    label: str = Field("", max_length=255, description="Shown where the key has acted.")
    expires_at: dt.datetime | None = None


class KeyView(View):
    """A key, without its secret."""

    id: int
    tenant_id: str
    label: str
    scopes: list[str]
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None


class NewKeyView(BaseModel):
    """A key that was just made."""

    id: int
    tenant_id: str
    secret: str | None = Field(description="Shown once; null when the request is repeated.")


class KeyList(View):
    """All keys of a tenant, by id."""

    items: list[KeyView]


@router.post(
    "/tenants/{tenant}/keys", summary="Make a key", status_code=201, response_model=NewKeyView
)
async def post_key(
    caller: CallerDep, tenant: TenantId, order: NewKeyOrder, ticket: TicketDep
) -> JSONResponse:
    """Make a key of a tenant. Its secret is in this answer and nowhere else. Scope `admin`."""

    def work(session: Session, _: Principal) -> Answer:
        made = create_key(
            session,
            tenant,
            scopes=order.scopes,
            label=order.label,
            expires_at=to_naive_utc(order.expires_at),
        )
        kept = {"id": made.id, "tenant_id": tenant, "secret": None}
        return Answer(201, {**kept, "secret": made.secret}, kept)

    return await write_once(caller, ADMIN, ticket, work)


@router.get("/tenants/{tenant}/keys", summary="List keys")
async def get_keys(caller: CallerDep, tenant: TenantId) -> KeyList:
    """The keys of a tenant, revoked ones as well; never their secrets. Scope `admin`."""

    def work(session: Session, _: Principal) -> list[ApiKey]:
        return list_keys(session, tenant)

    found = await caller.read(ADMIN, work)
    return KeyList(items=[KeyView.model_validate(key) for key in found])


@router.delete("/tenants/{tenant}/keys/{key_id}", summary="Revoke a key", status_code=204)
async def delete_key(
    caller: CallerDep, tenant: TenantId, key_id: Annotated[int, Path(ge=1, le=MAX_ID)]
) -> None:
    """Revoke a key; it stops at once. Scope `admin`."""

    def work(session: Session, _: Principal) -> None:
        revoke_key(session, tenant, key_id)

    await caller.write(ADMIN, work)
