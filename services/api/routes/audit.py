"""Who cancelled or reran what, and why."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session

from services.api.deps import CallerDep
from services.api.json_route import JsonRoute
from services.api.routes.tasks import visible_tenant
from services.api.views import (
    DEFAULT_LIMIT,
    MAX_ID,
    Cursor,
    Limit,
    PageView,
    TenantFilter,
    Time,
    View,
)
from shared.catalog.accounts import Principal
from shared.outbox.inspection import list_audit

router = APIRouter(tags=["tasks"], route_class=JsonRoute)


class AuditView(View):
    """One manual action on a task."""

    id: int
    task_id: int
    tenant_id: str
    action: str
    actor: str
    reason: str
    state_before: str | None
    state_after: str | None
    created_at: Time


@router.get("/audit", summary="List manual actions, newest first")
async def get_audit(
    caller: CallerDep,
    task: Annotated[int | None, Query(ge=1, le=MAX_ID, description="Only this task's.")] = None,
    tenant: TenantFilter = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> PageView[AuditView]:
    """Cancels, retries and the like by people. Scope `tasks:read`."""

    def work(session: Session, principal: Principal) -> PageView[AuditView]:
        page = list_audit(
            session,
            tenant_id=visible_tenant(principal, tenant),
            task_id=task,
            before=cursor,
            limit=limit,
        )
        items = [AuditView.model_validate(dict(row)) for row in page.items]
        return PageView(items=items, next_cursor=page.next_before)

    return await caller.read("tasks:read", work)
