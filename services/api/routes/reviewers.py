"""Reviewers that a tenant runs elsewhere: register, change, list, remove; and what they answer."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from services.api.deps import CallerDep, get_api
from services.api.json_route import JsonRoute
from services.api.vetting import vet_address
from services.api.views import MAX_ID, Time, View
from shared.catalog.accounts import Principal
from shared.catalog.review_callbacks import CallbackAnswer, CallbackDocument, accept_callback
from shared.catalog.webhook_reviewers import (
    STEP_PLACE,
    PutReviewer,
    delete_reviewer,
    get_reviewer,
    list_reviewers,
    put_reviewer,
)
from shared.core.webhooks import ID_HEADER, MAX_SECRETS, SIGNATURE_HEADER, TIMESTAMP_HEADER

router = APIRouter(tags=["reviews"], route_class=JsonRoute)

ReviewerName = Annotated[
    str, Path(pattern=r"^[a-z][a-z0-9_-]{0,31}$", description="The reviewer's name.")
]
StepId = Annotated[int, Path(ge=1, le=MAX_ID, description="`step_id` of the question.")]
#: What a callback is verified by.
_SIGNED = {
    "parameters": [
        {"name": name, "in": "header", "required": True, "schema": {"type": "string"}}
        for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER)
    ],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": CallbackDocument.model_json_schema()}},
    },
}


class ReviewerOrder(BaseModel):
    """A reviewer as it should be."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(max_length=2048, description="Where it is asked, by a signed POST.")
    status_url: str | None = Field(
        None,
        max_length=2048,
        description=f"Where it tells how far it is; `{STEP_PLACE}` stands for the step.",
    )
    secrets: list[str] | None = Field(
        None,
        max_length=MAX_SECRETS,
        description="`whsec_...`, all in use: several while they are changed. Null keeps those "
        "that are stored; a new reviewer gets one, which is shown once.",
    )


class ReviewerView(View):
    """A reviewer, without its secrets."""

    name: str
    url: str
    status_url: str | None
    created_at: Time
    updated_at: Time


class NewReviewerView(ReviewerView):
    """A reviewer, with the secret that was made for it."""

    secret: str | None = Field(None, description="Shown once; null when none was made.")


class ReviewerList(View):
    """A tenant's reviewers, by name."""

    items: list[ReviewerView]


class HeardView(BaseModel):
    """What was written for the step."""

    step_id: int
    outcome: str


@router.put(
    "/reviewers/{reviewer}",
    summary="Register or change a reviewer",
    responses={201: {"model": NewReviewerView, "description": "It is new."}},
)
async def put_a_reviewer(
    caller: CallerDep, reviewer: ReviewerName, order: ReviewerOrder, response: Response
) -> NewReviewerView:
    """Register a reviewer that policies can name. Scope `reviews:write`.

    It is asked with Standard Webhooks signatures, and answers at once or by a signed callback.
    Addresses of private networks are refused unless this deployment allows them.
    """
    deps = caller.api.deps
    # Who asks is looked at before any name is resolved for them.
    await caller.read("reviews:write", lambda _session, _principal: None)
    for url in (order.url, order.status_url):
        if url is not None:
            await vet_address(caller, url)

    def work(session: Session, principal: Principal) -> PutReviewer:
        deps.catalogue.need("review")
        return put_reviewer(
            session,
            principal.tenant_id,
            reviewer,
            url=order.url,
            status_url=order.status_url,
            secrets=order.secrets,
            box=deps.secrets,
        )

    put = await caller.write("reviews:write", work)
    if put.created:
        response.status_code = 201
    view = ReviewerView.model_validate(put.reviewer).model_dump()
    return NewReviewerView(**view, secret=put.secret)


@router.get("/reviewers", summary="List reviewers")
async def get_reviewers(caller: CallerDep) -> ReviewerList:
    """The reviewers of the key's tenant. Scope `reviews:read`."""

    def work(session: Session, principal: Principal) -> ReviewerList:
        rows = list_reviewers(session, principal.tenant_id)
        return ReviewerList(items=[ReviewerView.model_validate(row) for row in rows])

    return await caller.read("reviews:read", work)


@router.get("/reviewers/{reviewer}", summary="Show a reviewer")
async def get_a_reviewer(caller: CallerDep, reviewer: ReviewerName) -> ReviewerView:
    """A reviewer of the key's tenant. Scope `reviews:read`."""

    def work(session: Session, principal: Principal) -> ReviewerView:
        return ReviewerView.model_validate(get_reviewer(session, principal.tenant_id, reviewer))

    return await caller.read("reviews:read", work)


@router.delete("/reviewers/{reviewer}", summary="Remove a reviewer", status_code=204)
async def delete_a_reviewer(caller: CallerDep, reviewer: ReviewerName) -> None:
    """Remove a reviewer; a 409 while a bucket's policy names it. Scope `reviews:write`."""

    def work(session: Session, principal: Principal) -> None:
        delete_reviewer(session, principal.tenant_id, reviewer)

    await caller.write("reviews:write", work)


@router.post(
    "/review-callbacks/{step}", summary="Answer a question of a review", openapi_extra=_SIGNED
)
async def answer_a_step(request: Request, step: StepId) -> HeardView:
    """A reviewer's answer, with Standard Webhooks signatures instead of a key. It names its step.

    The same message again is answered the same. An answer that nobody waits for is a 409: the step
    has one already, the review is over, or its time is.
    """
    api, body = get_api(request), await request.body()
    headers = {
        name: request.headers.get(name, "")
        for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER)
    }

    def work(session: Session) -> CallbackAnswer:
        return accept_callback(
            session,
            api.deps.catalogue,
            step,
            headers=headers,
            body=body,
            box=api.deps.secrets,
            now=time.time(),
        )

    heard = await api.work.write(work)
    return HeardView(step_id=heard.step_id, outcome=heard.outcome)
