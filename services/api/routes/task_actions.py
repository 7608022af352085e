"""Acting on tasks: cancel and retry."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from services.api.auth import actor
from services.api.deps import Caller, CallerDep
from services.api.idempotency import Answer, TicketDep
from services.api.json_route import JsonRoute
from services.api.posts import act_once
from services.api.routes.tasks import TaskId, visible_tenant
from services.api.views import OrderBody
from shared.catalog.accounts import Principal
from shared.catalog.retries import need_service
from shared.core.errors import ConflictError
from shared.outbox.states import State

router = APIRouter(tags=["tasks"], route_class=JsonRoute)


class Reason(OrderBody):
    """Why; kept in the audit trail."""

    reason: str = Field("", max_length=500)


class RetryOrder(Reason):
    """Why, and whether a completed task may run again as well."""

    force: bool = Field(False, description="Run even a completed task again.")


class TaskState(BaseModel):
    """A task and where it stands now."""

    id: int
    state: str


@router.post(
    "/tasks/{task_id}:cancel",
    summary="Cancel a task",
    response_model=TaskState,
    responses={202: {"model": TaskState, "description": "It runs and will stop: `cancelling`."}},
)
async def cancel_task(
    caller: CallerDep,
    task_id: TaskId,
    ticket: TicketDep,
    order: Annotated[Reason | None, Body()] = None,
) -> JSONResponse:
    """Cancel at once what waits, and soon what runs; once answered it never completes.

    A task that has ended otherwise is a 409. Scope `tasks:write`.
    """
    reason = (order or Reason()).reason

    def act(principal: Principal) -> Answer:
        found = caller.api.deps.outbox.cancel(
            task_id,
            by=actor(principal),
            reason=reason,
            tenant_id=visible_tenant(principal, None),
        )
        state = str(found.state)
        if state in {State.COMPLETED, State.FAILED}:
            raise ConflictError(f"the task is {state}", code="task_ended", state=state)
        return Answer(200 if state == State.CANCELLED else 202, {"id": task_id, "state": state})

    return await act_once(caller, "tasks:write", ticket, act)


@router.post("/tasks/{task_id}:retry", summary="Run a task again", response_model=TaskState)
async def retry_task(
    caller: CallerDep,
    task_id: TaskId,
    ticket: TicketDep,
    order: Annotated[RetryOrder | None, Body()] = None,
) -> JSONResponse:
    """Run a failed or cancelled task again under the same id, going on from its checkpoint.

    A 409 says why it may not: it has not ended, something newer replaced it, or its key is taken.
    A 501 where nobody serves its queue. Scope `tasks:write`.
    """
    wanted = order or RetryOrder(reason="", force=False)

    def act(principal: Principal) -> Answer:
        _need_service(caller, principal, task_id)
        state = caller.api.deps.outbox.retry(
            task_id,
            by=actor(principal),
            reason=wanted.reason,
            force=wanted.force,
            tenant_id=visible_tenant(principal, None),
        )
        return Answer(200, {"id": task_id, "state": str(state)})

    return await act_once(caller, "tasks:write", ticket, act)


def _need_service(caller: Caller, principal: Principal, task_id: int) -> None:
    deps = caller.api.deps
    tenant_id = visible_tenant(principal, None)
    deps.database.run_session(
        lambda session: need_service(session, deps.catalogue, task_id, tenant_id=tenant_id),
        read_only=True,
    )
