"""Backups of a bucket: start one, watch it, cancel it, drop it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse
from pydantic import Field, field_validator
from sqlalchemy.orm import Session

from services.api.admission import admitted_bucket
from services.api.deps import CallerDep
from services.api.idempotency import Answer, TicketDep
from services.api.json_route import JsonRoute
from services.api.paging import PagingDep
from services.api.posts import write_once
from services.api.routes.puts import BucketName
from services.api.views import MAX_ID, PageView, Time, View
from shared.catalog.accounts import Principal
from shared.catalog.backups.counts import shown
from shared.catalog.backups.listing import ListedItem, list_items
from shared.catalog.backups.retention import prune_run
from shared.catalog.backups.runs import cancel_run, enqueue_prune, manual_slot, open_run
from shared.catalog.buckets import get_bucket
from shared.catalog.models import BackupItemState, BackupRun, BackupRunState
from shared.core.errors import NotFoundError

router = APIRouter(tags=["backups"], route_class=JsonRoute)

RunId = Annotated[int, Path(ge=1, le=MAX_ID, description="The backup's id.")]


class BackupView(View):
    """One backup of a bucket."""

    id: int
    target: str = Field(description="The channel that keeps it.")
    slot: str = Field(description="The time that it is for, or `manual:` and an id.")
    state: str = Field(
        description="`open`, `complete`, `failed`, `cancelled` or `pruned`. Only a complete one "
        "can be restored from."
    )
    snapshot_at: Time | None = Field(description="The moment whose versions it holds.")
    counts: dict[str, Any] | None = Field(
        description="Contents by what became of them. `lost` ones could be read nowhere, `failed` "
        "ones not be read or copied in time: a complete backup without them is not whole, and its "
        "manifest says of how many versions it is `lacking` the bytes."
    )
    manifest_sha256: str | None
    pins_until: Time | None = Field(
        description="Until then its contents are held back from deletion, at most."
    )
    task_id: int | None
    error_code: str | None
    created_at: Time
    ended_at: Time | None

    @field_validator("counts")
    @classmethod
    def _only_counts(cls, counts: dict[str, Any] | None) -> dict[str, Any] | None:
        return shown(counts or {}) or None


class BackupItemView(View):
    """One content of a backup, and what became of it."""

    id: int
    blob_id: int
    keys: list[str] = Field(description="Some of the keys under which the bucket had it.")
    state: str = Field(description="`open`, `done`, `lost`, `failed` or `cancelled`.")
    size: int = Field(validation_alias="size_bytes")
    is_reused: bool
    error_code: str | None = Field(
        description="`source_lost`: every copy is missing or damaged. `source_unavailable`: no "
        "channel with a copy answered while the backup waited."
    )
    task_id: int | None
    ended_at: Time | None


@router.post(
    "/buckets/{bucket}/backups",
    summary="Back a bucket up now",
    status_code=202,
    response_model=BackupView,
)
async def post_backup(caller: CallerDep, bucket: BucketName, ticket: TicketDep) -> JSONResponse:
    """Start a backup by the bucket's rule. Scope `backups:write`.

    Content that the target holds already is not copied again. A 409 while another one is open, and
    for a bucket without a rule.
    """
    api = caller.api

    def work(session: Session, principal: Principal) -> Answer:
        found = admitted_bucket(api, session, principal, bucket, queue="backup")
        run = open_run(session, api.deps.catalogue, found.id, slot=manual_slot())
        return Answer(202, BackupView.model_validate(run).model_dump(mode="json"))

    return await write_once(caller, "backups:write", ticket, work)


@router.get("/buckets/{bucket}/backups", summary="List backups, newest first")
async def get_backups(
    caller: CallerDep,
    bucket: BucketName,
    paging: PagingDep,
    state: Annotated[BackupRunState | None, Query(description="Only those.")] = None,
) -> PageView[BackupView]:
    """The backups of a bucket. Scope `backups:read`."""

    def work(session: Session, principal: Principal) -> list[BackupRun]:
        found = get_bucket(session, principal.tenant_id, bucket)
        where = [BackupRun.bucket_id == found.id, BackupRun.state != BackupRunState.FOLLOWING]
        if state is not None:
            where.append(BackupRun.state == state)
        return paging.newest(session, BackupRun, *where)

    return paging.show(await caller.read("backups:read", work), BackupView)


@router.get("/buckets/{bucket}/backups/{run_id}", summary="Show a backup")
async def get_backup(caller: CallerDep, bucket: BucketName, run_id: RunId) -> BackupView:
    """A backup with its progress. Scope `backups:read`."""

    def work(session: Session, principal: Principal) -> BackupRun:
        return _find(session, principal, bucket, run_id)

    return BackupView.model_validate(await caller.read("backups:read", work))


@router.get("/buckets/{bucket}/backups/{run_id}/items", summary="List a backup's contents")
async def get_backup_items(
    caller: CallerDep,
    bucket: BucketName,
    run_id: RunId,
    paging: PagingDep,
    state: Annotated[
        BackupItemState | None,
        Query(description="Only those: what it lacks is `lost` or `failed`."),
    ] = None,
) -> PageView[BackupItemView]:
    """The contents of a backup, until it is dropped. Scope `backups:read`."""

    def work(session: Session, principal: Principal) -> list[ListedItem]:
        run = _find(session, principal, bucket, run_id)
        return list_items(session, run, state=state, after=paging.cursor or 0, limit=paging.rows)

    return paging.show(await caller.read("backups:read", work), BackupItemView)


@router.post(
    "/buckets/{bucket}/backups/{run_id}:cancel",
    summary="Cancel a backup",
    response_model=BackupView,
)
async def cancel_backup(
    caller: CallerDep, bucket: BucketName, run_id: RunId, ticket: TicketDep
) -> JSONResponse:
    """Stop an open backup; the next one finds what it has copied. Scope `backups:write`."""

    def work(session: Session, principal: Principal) -> Answer:
        run = _find(session, principal, bucket, run_id)
        cancelled = cancel_run(session, caller.api.deps.catalogue, run)
        return Answer(200, BackupView.model_validate(cancelled).model_dump(mode="json"))

    return await write_once(caller, "backups:write", ticket, work)


@router.delete("/buckets/{bucket}/backups/{run_id}", summary="Drop a backup", status_code=204)
async def delete_backup(caller: CallerDep, bucket: BucketName, run_id: RunId) -> None:
    """Drop a complete backup; what only it names goes after the rule's grace.

    A 409 while an open restore reads it. Scope `backups:write`.
    """
    catalogue = caller.api.deps.catalogue

    def work(session: Session, principal: Principal) -> None:
        # Without its pruning the run would be gone, and what only it names would stay.
        catalogue.need("backup")
        run = _find(session, principal, bucket, run_id)
        prune_run(session, run.id)
        enqueue_prune(
            session,
            catalogue,
            tenant_id=run.tenant_id,
            bucket_id=run.bucket_id,
            target=run.target,
        )

    await caller.write("backups:write", work)


def _find(session: Session, principal: Principal, bucket: str, run_id: int) -> BackupRun:
    found = get_bucket(session, principal.tenant_id, bucket)
    run = session.get(BackupRun, run_id)
    if run is None or run.bucket_id != found.id or run.state == BackupRunState.FOLLOWING:
        raise NotFoundError("there is no such backup", code="backup_not_found")
    return run
