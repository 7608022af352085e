"""Restores of a bucket or prefix, what came of them, and copies that are lost."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse
from pydantic import Field
from sqlalchemy.orm import Session

from services.api.admission import admitted_bucket
from services.api.deps import CallerDep
from services.api.idempotency import Answer, TicketDep
from services.api.json_route import JsonRoute
from services.api.paging import PagingDep
from services.api.posts import write_once
from services.api.routes.puts import BucketName
from services.api.routes.tasks import visible_tenant
from services.api.views import (
    MAX_ID,
    PageView,
    Time,
    View,
    to_naive_utc,
)
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket
from shared.catalog.models import Loss, LossState, Restore, RestoreItem
from shared.catalog.restores.runs import RestoreSpec, cancel_restore, open_restore
from shared.core.errors import NotFoundError

router = APIRouter(tags=["backups"], route_class=JsonRoute)

RestoreId = Annotated[int, Path(ge=1, le=MAX_ID, description="The restore's id.")]


class RestoreView(View):
    """One restore and how far it has got."""

    id: int
    mode: str
    prefix: str
    at: Time | None
    policy: str
    is_dry_run: bool
    run_id: int | None = Field(description="The backup that it reads.")
    state: str = Field(description="`open`, `complete`, `failed` or `cancelled`.")
    counts: dict[str, int] | None = Field(
        description="Entries, and their bytes, by outcome: `restored`, `same` (nothing to do), "
        "`kept` and `older` (the policy), `refused` (the bucket's rules), `unrecoverable`; of a "
        "search `present`, `lost`, `unknown`."
    )
    task_id: int | None
    error_code: str | None
    created_at: Time
    ended_at: Time | None


class RestoreItemView(View):
    """What became of one key."""

    id: int
    key: str
    outcome: str
    size: int = Field(validation_alias="size_bytes")
    version_id: int | None
    detail: str


class LossView(View):
    """A copy whose bytes were found missing or damaged."""

    id: int
    tenant_id: str
    blob_id: int
    location_id: int
    channel: str
    state: str = Field(
        description="`open`, `restored`, `present` (it was there after all), `superseded` (nothing "
        "needs it), `unrecoverable` or `failed`; the last two are tried again each day."
    )
    found_by: str
    detail: str
    restored_from: str | None
    task_id: int | None
    error_code: str | None
    created_at: Time
    ended_at: Time | None


@router.post(
    "/buckets/{bucket}/restores",
    summary="Restore a bucket or prefix",
    status_code=202,
    response_model=RestoreView,
)
async def post_restore(
    caller: CallerDep, bucket: BucketName, spec: RestoreSpec, ticket: TicketDep
) -> JSONResponse:
    """Bring keys back from a backup, or search the keys' content for what is lost.

    Scope `backups:write`. A key that comes back is a new version; nothing is deleted.
    """
    api = caller.api
    at = to_naive_utc(spec.at)

    def work(session: Session, principal: Principal) -> Answer:
        found = admitted_bucket(api, session, principal, bucket, queue="restore")
        restore = open_restore(session, api.deps.catalogue, found, spec, at=at)
        return Answer(202, RestoreView.model_validate(restore).model_dump(mode="json"))

    return await write_once(caller, "backups:write", ticket, work)


@router.get("/buckets/{bucket}/restores", summary="List restores, newest first")
async def get_restores(
    caller: CallerDep, bucket: BucketName, paging: PagingDep
) -> PageView[RestoreView]:
    """The restores of a bucket. Scope `backups:read`."""

    def work(session: Session, principal: Principal) -> list[Restore]:
        found = get_bucket(session, principal.tenant_id, bucket)
        return paging.newest(session, Restore, Restore.bucket_id == found.id)

    return paging.show(await caller.read("backups:read", work), RestoreView)


@router.get("/buckets/{bucket}/restores/{restore_id}", summary="Show a restore")
async def get_restore(caller: CallerDep, bucket: BucketName, restore_id: RestoreId) -> RestoreView:
    """A restore with its progress. Scope `backups:read`."""

    def work(session: Session, principal: Principal) -> Restore:
        return _find(session, principal, bucket, restore_id)

    return RestoreView.model_validate(await caller.read("backups:read", work))


@router.get("/buckets/{bucket}/restores/{restore_id}/items", summary="List what became of each key")
async def get_restore_items(
    caller: CallerDep,
    bucket: BucketName,
    restore_id: RestoreId,
    paging: PagingDep,
    outcome: Annotated[
        str | None, Query(max_length=16, pattern=r"^[a-z]*$", description="Only those.")
    ] = None,
) -> PageView[RestoreItemView]:
    """The keys that a restore has met; a dry run keeps none. Scope `backups:read`."""

    def work(session: Session, principal: Principal) -> list[RestoreItem]:
        restore = _find(session, principal, bucket, restore_id)
        where = [RestoreItem.restore_id == restore.id]
        if outcome is not None:
            where.append(RestoreItem.outcome == outcome)
        return paging.oldest(session, RestoreItem, *where)

    return paging.show(await caller.read("backups:read", work), RestoreItemView)


@router.post(
    "/buckets/{bucket}/restores/{restore_id}:cancel",
    summary="Cancel a restore",
    response_model=RestoreView,
)
async def cancel_a_restore(
    caller: CallerDep, bucket: BucketName, restore_id: RestoreId, ticket: TicketDep
) -> JSONResponse:
    """Stop a restore; what it has restored stays. Scope `backups:write`."""

    def work(session: Session, principal: Principal) -> Answer:
        restore = _find(session, principal, bucket, restore_id)
        cancelled = cancel_restore(session, caller.api.deps.catalogue, restore)
        return Answer(200, RestoreView.model_validate(cancelled).model_dump(mode="json"))

    return await write_once(caller, "backups:write", ticket, work)


@router.get("/losses", summary="List lost copies, newest first")
async def get_losses(
    caller: CallerDep,
    paging: PagingDep,
    state: Annotated[LossState | None, Query(description="Only those.")] = None,
) -> PageView[LossView]:
    """Copies that were found missing or damaged; an admin sees every tenant's.

    Scope `backups:read`.
    """

    def work(session: Session, principal: Principal) -> list[Loss]:
        where = []
        tenant = visible_tenant(principal, None)
        if tenant is not None:
            where.append(Loss.tenant_id == tenant)
        if state is not None:
            where.append(Loss.state == state)
        return paging.newest(session, Loss, *where)

    return paging.show(await caller.read("backups:read", work), LossView)


def _find(session: Session, principal: Principal, bucket: str, restore_id: int) -> Restore:
    found = get_bucket(session, principal.tenant_id, bucket)
    restore = session.get(Restore, restore_id)
    if restore is None or restore.bucket_id != found.id:
        raise NotFoundError("there is no such restore", code="restore_not_found")
    return restore
