"""Pulls that are asked for by name, and what has become of pulls."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session
from starlette.responses import Response

from services.api.absent import QUEUE
from services.api.deps import CallerDep
from services.api.idempotency import Answer, TicketDep
from services.api.json_route import JsonRoute
from services.api.origin_views import OriginPullView
from services.api.posts import write_once
from services.api.routes.puts import BucketName
from services.api.tracing import trace_parent
from services.api.views import MAX_ID
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket
from shared.catalog.limits import check_key
from shared.catalog.origins.pulling import get_pull, pull_now
from shared.core.errors import NotFoundError

router = APIRouter(tags=["objects"], route_class=JsonRoute)


class OriginPullRequest(BaseModel):
    """The key that is to be fetched."""

    model_config = ConfigDict(extra="forbid")

    key: str = Field(max_length=1024)


@router.post(
    "/buckets/{bucket}/origin-pulls",
    summary="Fetch an absent object",
    status_code=202,
    response_model=OriginPullView,
)
async def post_pull(
    request: Request,
    caller: CallerDep,
    bucket: BucketName,
    body: OriginPullRequest,
    ticket: TicketDep,
) -> Response:
    """Fetch a key from its bucket's origins, whatever is remembered of earlier failures.

    One that is being fetched already is answered with that pull. A 409 when the key is there, or
    no rule counts for it. Scope `objects:write`.
    """
    check_key(body.key)
    api = caller.api
    trace = trace_parent(request)

    def work(session: Session, principal: Principal) -> Answer:
        found = get_bucket(session, principal.tenant_id, bucket)

        def admit(region: str) -> None:
            api.backlog.check(session, queue=QUEUE, region=region, tenant_id=found.tenant_id)

        pull = pull_now(
            session, api.deps.catalogue, found, body.key, admit=admit, trace_parent=trace
        )
        return Answer(202, OriginPullView.model_validate(pull).model_dump(mode="json"))

    return await write_once(caller, "objects:write", ticket, work)


@router.get("/buckets/{bucket}/origin-pulls/{pull_id}", summary="Show a pull")
async def get_a_pull(
    caller: CallerDep, bucket: BucketName, pull_id: Annotated[int, Path(ge=1)]
) -> OriginPullView:
    """A pull of this bucket, for a week after its end. Scope `objects:read`."""

    def work(session: Session, principal: Principal) -> OriginPullView:
        found = get_bucket(session, principal.tenant_id, bucket)
        if pull_id > MAX_ID:
            raise NotFoundError("there is no such pull", code="origin_pull_not_found")
        return OriginPullView.model_validate(get_pull(session, found.id, pull_id))

    return await caller.read("objects:read", work)
