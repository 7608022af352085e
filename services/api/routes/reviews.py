"""Reviews: what waits for a person, what was decided, and deciding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Body, Path, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from services.api.auth import actor
from services.api.deps import Caller, CallerDep
from services.api.idempotency import Answer, TicketDep
from services.api.json_route import JsonRoute
from services.api.paging import PagingDep
from services.api.posts import write_once
from services.api.review_queries import ReviewRow, list_reviews, show_review
from services.api.routes.tasks import visible_tenant
from services.api.storing import discard
from services.api.views import MAX_ID, OrderBody, PageView, Time, View
from shared.catalog.accounts import Principal
from shared.catalog.models import ReviewState
from shared.catalog.quarantine import destroy, release
from shared.catalog.reviewing import decide

router = APIRouter(tags=["reviews"], route_class=JsonRoute)

ReviewId = Annotated[int, Path(ge=1, le=MAX_ID, description="The review's id.")]


class StepView(View):
    """What one reviewer said."""

    step: str
    outcome: str
    detail: str
    ended_at: Time | None


class ReviewView(View):
    """The review of one version."""

    id: int
    tenant_id: str
    bucket: str | None
    key: str | None
    version_id: int
    state: str = Field(description="`doubtful` waits for a person.")
    reason: str
    decided_by: str | None
    sha256: str
    size: int | None
    content_type: str | None
    task_id: int | None
    deadline_at: Time | None = Field(description="When the policy decides, if no person does.")
    created_at: Time
    decided_at: Time | None
    run_id: int = Field(description="The run of re-reviews that it belongs to; 0: the first one.")


class ReviewDetail(ReviewView):
    """A review with what each reviewer said."""

    steps: list[StepView]


class Decision(OrderBody):
    """Why; shown with the review."""

    reason: str = Field("", max_length=512)


class DecidedView(BaseModel):
    """A decided review."""

    id: int
    state: str


@router.get("/reviews", summary="List reviews, newest first")
async def get_reviews(
    caller: CallerDep,
    paging: PagingDep,
    state: Annotated[
        ReviewState | None, Query(description="`doubtful` are those that wait for a person.")
    ] = None,
    run_id: Annotated[
        int | None, Query(ge=0, le=MAX_ID, description="Those of this run of re-reviews only.")
    ] = None,
) -> PageView[ReviewView]:
    """Reviews of the key's tenant; an admin sees every tenant's. Scope `reviews:read`."""

    def work(session: Session, principal: Principal) -> list[ReviewRow]:
        tenant = visible_tenant(principal, None)
        return list_reviews(
            session,
            tenant,
            state=state,
            run_id=run_id,
            before=paging.cursor,
            limit=paging.rows,
        )

    return paging.show(await caller.read("reviews:read", work), ReviewView)


@router.get("/reviews/{review_id}", summary="Show a review")
async def get_review(caller: CallerDep, review_id: ReviewId) -> ReviewDetail:
    """A review and what each reviewer said. Scope `reviews:read`."""

    def work(session: Session, principal: Principal) -> ReviewDetail:
        row, steps = show_review(session, visible_tenant(principal, None), review_id)
        return ReviewDetail(
            **ReviewView.model_validate(row).model_dump(),
            steps=[StepView.model_validate(step) for step in steps],
        )

    return await caller.read("reviews:read", work)


@router.post("/reviews/{review_id}:approve", summary="Approve", response_model=DecidedView)
async def approve(
    caller: CallerDep,
    review_id: ReviewId,
    ticket: TicketDep,
    decision: Annotated[Decision | None, Body()] = None,
) -> JSONResponse:
    """Let content pass that waits for a person; its upload begins. Scope `reviews:write`."""
    return await write_once(
        caller, "reviews:write", ticket, _deciding(caller, review_id, decision, approve=True)
    )


@router.post("/reviews/{review_id}:reject", summary="Reject", response_model=DecidedView)
async def reject(
    caller: CallerDep,
    review_id: ReviewId,
    ticket: TicketDep,
    decision: Annotated[Decision | None, Body()] = None,
) -> JSONResponse:
    """Block content that waits for a person; it goes into quarantine. Scope `reviews:write`."""
    return await write_once(
        caller, "reviews:write", ticket, _deciding(caller, review_id, decision, approve=False)
    )


@router.post(
    "/reviews/{review_id}:release", summary="Release from quarantine", response_model=DecidedView
)
async def release_content(
    caller: CallerDep,
    review_id: ReviewId,
    ticket: TicketDep,
    decision: Annotated[Decision | None, Body()] = None,
) -> JSONResponse:
    """Let blocked content pass after all, while its bytes are kept. Scope `reviews:write`.

    A 409 when they are gone, or when the key was written or deleted since.
    """

    def work(session: Session, principal: Principal) -> Answer:
        review = release(
            session,
            caller.api.deps.catalogue,
            review_id,
            by=actor(principal),
            reason="" if decision is None else decision.reason,
            tenant_id=visible_tenant(principal, None),
        )
        return Answer(200, {"id": review.id, "state": str(review.state)})

    return await write_once(caller, "reviews:write", ticket, work)


@router.post("/reviews/{review_id}:destroy", summary="End a quarantine", response_model=DecidedView)
async def destroy_content(
    caller: CallerDep,
    review_id: ReviewId,
    ticket: TicketDep,
    decision: Annotated[Decision | None, Body()] = None,
) -> JSONResponse:
    """Remove the bytes of blocked content before their time. Scope `reviews:write`."""
    deps = caller.api.deps
    keys: set[str] = set()

    def work(session: Session, principal: Principal) -> Answer:
        key = destroy(
            session,
            deps.catalogue,
            review_id,
            by=actor(principal),
            reason="" if decision is None else decision.reason,
            tenant_id=visible_tenant(principal, None),
        )
        if key is not None:
            keys.add(key)
        return Answer(200, {"id": review_id, "state": str(ReviewState.REJECTED)})

    response = await write_once(caller, "reviews:write", ticket, work)
    for key in keys:
        # Unnamed by now: what fails here is left to the clean-up.
        await caller.api.work.clean_up(lambda key=key: discard(deps.staging, key))  # type: ignore[misc]
    return response


def _deciding(
    caller: Caller, review_id: int, decision: Decision | None, *, approve: bool
) -> Callable[[Session, Principal], Answer]:
    def work(session: Session, principal: Principal) -> Answer:
        review = decide(
            session,
            caller.api.deps.catalogue,
            review_id,
            approve=approve,
            by=actor(principal),
            reason="" if decision is None else decision.reason,
            tenant_id=visible_tenant(principal, None),
        )
        return Answer(200, {"id": review.id, "state": str(review.state)})

    return work
