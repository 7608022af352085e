"""Tenants: make and list them."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import Field
from sqlalchemy.orm import Session

from services.api.deps import CallerDep
from services.api.idempotency import Answer, TicketDep
from services.api.json_route import JsonRoute
from services.api.posts import write_once
from services.api.views import DEFAULT_LIMIT, Limit, NameCursor, OrderBody, Time, View
from shared.catalog.accounts import ADMIN, Principal, create_tenant, list_tenants
from shared.catalog.models import Tenant

router = APIRouter(tags=["admin"], route_class=JsonRoute)


class NewTenant(OrderBody):
    """A tenant to be made."""

    id: str = Field(max_length=64, description="Small letters, digits, `-` and `_`.")
    name: str = Field("", max_length=255)


class TenantView(View):
    """A tenant."""

    id: str
    name: str
    is_enabled: bool
    created_at: Time


class TenantList(View):
    """One page by id. `next_cursor` is null at the end."""

    items: list[TenantView]
    next_cursor: str | None


@router.post("/tenants", summary="Make a tenant", status_code=201, response_model=TenantView)
async def post_tenant(caller: CallerDep, tenant: NewTenant, ticket: TicketDep) -> JSONResponse:
    """Make a tenant; a 409 when there is one of this id. Scope `admin`."""

    def work(session: Session, _: Principal) -> Answer:
        made = create_tenant(session, tenant.id, name=tenant.name)
        session.refresh(made)
        return Answer(201, TenantView.model_validate(made).model_dump(mode="json"))

    return await write_once(caller, ADMIN, ticket, work)


@router.get("/tenants", summary="List tenants")
async def get_tenants(
    caller: CallerDep,
    cursor: NameCursor = "",
    limit: Limit = DEFAULT_LIMIT,
) -> TenantList:
    """All tenants, by id. Scope `admin`."""

    def work(session: Session, _: Principal) -> list[Tenant]:
        return list_tenants(session, after=cursor, limit=limit + 1)

    found = await caller.read(ADMIN, work)
    return TenantList(
        items=[TenantView.model_validate(tenant) for tenant in found[:limit]],
        next_cursor=found[limit - 1].id if len(found) > limit else None,
    )
