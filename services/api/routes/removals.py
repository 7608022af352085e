"""Deleting all keys with a prefix: asked for here, done by a task, watched here."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import JSONResponse
from pydantic import Field
from sqlalchemy.orm import Session

from services.api.admission import admitted_bucket
from services.api.auth import actor
from services.api.deps import CallerDep
from services.api.idempotency import Answer, TicketDep
from services.api.json_route import JsonRoute
from services.api.paging import PagingDep
from services.api.posts import write_once
from services.api.routes.puts import BucketName
from services.api.views import MAX_ID, OrderBody, PageView, Time, View
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket
from shared.catalog.models import Removal
from shared.catalog.removals import find_removal, start_removal

router = APIRouter(tags=["objects"], route_class=JsonRoute)

RemovalId = Annotated[int, Path(ge=1, le=MAX_ID, description="The removal's id.")]


class RemovalOrder(OrderBody):
    """What to delete."""

    prefix: str = Field(max_length=1024, description="All keys that begin so; empty: all keys.")
    dry_run: bool = Field(False, description="Only count.")


class RemovalView(View):
    """A deletion by prefix and how far it has got."""

    id: int
    prefix: str
    is_dry_run: bool
    state: str = Field(description="`running`, `completed`, `failed` or `cancelled`.")
    deleted_keys: int
    deleted_bytes: int
    newer_keys: int = Field(description="Kept: written after the request.")
    held_keys: int = Field(description="Kept: under a hold.")
    cursor: str | None = Field(description="The last key that is done.")
    task_id: int | None
    error_code: str | None
    created_by: str
    created_at: Time
    ended_at: Time | None


@router.post(
    "/buckets/{bucket}/removals",
    summary="Delete all keys with a prefix",
    status_code=202,
    response_model=RemovalView,
)
async def post_removal(
    caller: CallerDep, bucket: BucketName, order: RemovalOrder, ticket: TicketDep
) -> JSONResponse:
    """Delete what is there now; what is written after this answer stays. Scope `objects:write`.

    The task may be cancelled in between, and run again: it then goes on with the next key.
    """
    api = caller.api

    def work(session: Session, principal: Principal) -> Answer:
        found = admitted_bucket(api, session, principal, bucket, queue="delete")
        removal = start_removal(
            session,
            api.deps.catalogue,
            found,
            prefix=order.prefix,
            is_dry_run=order.dry_run,
            by=actor(principal),
        )
        return Answer(202, RemovalView.model_validate(removal).model_dump(mode="json"))

    return await write_once(caller, "objects:write", ticket, work)


@router.get("/buckets/{bucket}/removals/{removal_id}", summary="Show a removal")
async def get_removal(caller: CallerDep, bucket: BucketName, removal_id: RemovalId) -> RemovalView:
    """A deletion by prefix, with its progress. Scope `objects:read`."""

    def work(session: Session, principal: Principal) -> Removal:
        found = get_bucket(session, principal.tenant_id, bucket)
        return find_removal(session, found.id, removal_id)

    return RemovalView.model_validate(await caller.read("objects:read", work))


@router.get("/buckets/{bucket}/removals", summary="List removals, newest first")
async def get_removals(
    caller: CallerDep, bucket: BucketName, paging: PagingDep
) -> PageView[RemovalView]:
    """Deletions by prefix of a bucket. Scope `objects:read`."""

    def work(session: Session, principal: Principal) -> list[Removal]:
        found = get_bucket(session, principal.tenant_id, bucket)
        return paging.newest(session, Removal, Removal.bucket_id == found.id)

    return paging.show(await caller.read("objects:read", work), RemovalView)
