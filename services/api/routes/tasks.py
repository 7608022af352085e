"""Looking at tasks: the list and one task with its attempts and events."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field
from sqlalchemy.orm import Session

from services.api.auth import is_admin
from services.api.deps import CallerDep
from services.api.json_route import JsonRoute
from services.api.views import (
    DEFAULT_LIMIT,
    MAX_ID,
    NAME_PATTERN,
    Cursor,
    Limit,
    PageView,
    TaskBrief,
    TenantFilter,
    Time,
    View,
    task_fields,
    to_naive_utc,
)
from shared.catalog.accounts import Principal
from shared.core.errors import ForbiddenError, NotFoundError
from shared.outbox.inspection import TaskDetail, TaskFilter, list_tasks, show_task
from shared.outbox.states import State

router = APIRouter(tags=["tasks"], route_class=JsonRoute)

TaskId = Annotated[int, Path(ge=1, le=MAX_ID, description="The task's id.")]


class AttemptView(View):
    """An attempt that ended in anything but plain success."""

    attempt: int
    outcome: str
    owner: str | None = Field(description="The process that ran it, and a part per claim.")
    fence: int = Field(description="Grows with each claim; a later write needs a later fence.")
    error_code: str | None
    error_detail: str | None
    started_at: Time | None
    ended_at: Time


class EventView(View):
    """Something that happened to the task. Ids only grow."""

    id: int
    type: str
    data: dict[str, Any]
    created_at: Time


class TaskView(TaskBrief):
    """All that is kept of a task."""

    payload: dict[str, Any]
    payload_version: int
    checkpoint: Any = Field(description="Where the next execution goes on.")
    progress: int
    result: Any
    crashes: int
    owner: str | None
    fence: int
    lease_until: Time | None
    dedupe_key: str | None
    idempotency_key: str | None
    parent_id: int | None
    trace_parent: str | None
    attempts: list[AttemptView] = Field(description="The newest 200, in order of time.")
    events: list[EventView] = Field(description="The newest 200, in order of time.")


@router.get("/tasks", summary="List tasks, newest first")
async def get_tasks(
    caller: CallerDep,
    state: Annotated[State | None, Query(description="Only tasks in this state.")] = None,
    queue: Annotated[
        str | None, Query(max_length=32, pattern=NAME_PATTERN, description="Only this queue.")
    ] = None,
    kind: Annotated[
        str | None,
        Query(max_length=64, pattern=NAME_PATTERN, description="Such as `upload.store`."),
    ] = None,
    tenant: TenantFilter = None,
    since: Annotated[
        dt.datetime | None, Query(description="Created at or after this time (RFC 3339).")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> PageView[TaskBrief]:
    """Tasks of the key's tenant; an admin sees every tenant's. Scope `tasks:read`."""

    def work(session: Session, principal: Principal) -> PageView[TaskBrief]:
        wanted = TaskFilter(
            state=state,
            queue=queue,
            kind=kind,
            tenant_id=visible_tenant(principal, tenant),
            since=to_naive_utc(since),
        )
        page = list_tasks(session, wanted, before=cursor, limit=limit)
        items = [TaskBrief.model_validate(task_fields(row)) for row in page.items]
        return PageView(items=items, next_cursor=page.next_before)

    return await caller.read("tasks:read", work)


@router.get("/tasks/{task_id}", summary="Show one task")
async def get_task(caller: CallerDep, task_id: TaskId, response: Response) -> TaskView:
    """One task with its attempts and events, as it is now: never cached. Scope `tasks:read`."""

    def work(session: Session, principal: Principal) -> TaskDetail:
        found = show_task(session, task_id, tenant_id=visible_tenant(principal, None))
        if found is None:
            raise NotFoundError(f"there is no task {task_id}", code="task_not_found")
        return found

    response.headers["cache-control"] = "no-store"
    return task_view(await caller.read("tasks:read", work))


def visible_tenant(principal: Principal, wanted: str | None) -> str | None:
    """Return the tenant whose rows may be seen, None for all.

    Raises ForbiddenError for another tenant's.
    """
    if is_admin(principal):
        return wanted
    if wanted is not None and wanted != principal.tenant_id:
        raise ForbiddenError("only an admin sees other tenants", code="scope_missing")
    return principal.tenant_id


def task_view(detail: TaskDetail) -> TaskView:
    """Return a task as it is answered."""
    fields = task_fields(detail.task)
    envelope = fields.pop("payload") or {}
    return TaskView(
        **fields,
        payload=envelope.get("p", {}),
        payload_version=envelope.get("v", 0),
        attempts=[AttemptView.model_validate(dict(row)) for row in detail.attempts],
        events=[EventView.model_validate(dict(row)) for row in detail.events],
    )
