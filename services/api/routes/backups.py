"""Backups of a bucket: start one, watch it, cancel it, drop it."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse
from pydantic import Field
from sqlalchemy.orm import Session

from services.api.deps import CallerDep
from services.api.idempotency import Answer, TicketDep
from services.api.json_route import JsonRoute
from services.api.posts import write_once
from services.api.routes.puts import BucketName
from services.api.views import DEFAULT_LIMIT, MAX_ID, Cursor, Limit, PageView, Time, View
from shared.catalog.accounts import Principal
from shared.catalog.backups.retention import prune_run
from shared.catalog.backups.runs import cancel_run, enqueue_prune, manual_slot, open_run
from shared.catalog.buckets import get_bucket
from shared.catalog.models import BackupRun, BackupRunState
from shared.catalog.regions import region_of
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
        description="Contents by what became of them; `lost` ones could be read nowhere."
    )
    manifest_sha256: str | None
    pins_until: Time | None = Field(
        description="Until then its contents are held back from deletion, at most."
    )
    task_id: int | None
    error_code: str | None
    created_at: Time
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
        api.deps.catalogue.need("backup")
        found = get_bucket(session, principal.tenant_id, bucket)
        api.backlog.check(
            session,
            queue="backup",
            region=region_of(session, found, "backup"),
            tenant_id=principal.tenant_id,
        )
        run = open_run(session, api.deps.catalogue, found.id, slot=manual_slot())
        return Answer(202, BackupView.model_validate(run).model_dump(mode="json"))

    return await write_once(caller, "backups:write", ticket, work)


@router.get("/buckets/{bucket}/backups", summary="List backups, newest first")
async def get_backups(
    caller: CallerDep,
    bucket: BucketName,
    state: Annotated[BackupRunState | None, Query(description="Only those.")] = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> PageView[BackupView]:
    """The backups of a bucket. Scope `backups:read`."""

    def work(session: Session, principal: Principal) -> list[BackupRun]:
        found = get_bucket(session, principal.tenant_id, bucket)
        query = sa.select(BackupRun).where(
            BackupRun.bucket_id == found.id, BackupRun.state != BackupRunState.FOLLOWING
        )
        if state is not None:
            query = query.where(BackupRun.state == state)
        if cursor is not None:
            query = query.where(BackupRun.id < cursor)
        return list(session.scalars(query.order_by(BackupRun.id.desc()).limit(limit + 1)))

    rows = await caller.read("backups:read", work)
    return PageView(
        items=[BackupView.model_validate(row) for row in rows[:limit]],
        next_cursor=rows[limit - 1].id if len(rows) > limit else None,
    )


@router.get("/buckets/{bucket}/backups/{run_id}", summary="Show a backup")
async def get_backup(caller: CallerDep, bucket: BucketName, run_id: RunId) -> BackupView:
    """A backup with its progress. Scope `backups:read`."""

    def work(session: Session, principal: Principal) -> BackupRun:
        return _find(session, principal, bucket, run_id)

    return BackupView.model_validate(await caller.read("backups:read", work))


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
