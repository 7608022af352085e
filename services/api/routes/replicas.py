"""Copies on other channels: what waits or has failed, and how far a bucket's rules are."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field
from sqlalchemy.orm import Session

from services.api.deps import CallerDep
from services.api.json_route import JsonRoute
from services.api.paging import PagingDep
from services.api.routes.puts import BucketName
from services.api.routes.tasks import visible_tenant
from services.api.views import (
    NAME_PATTERN,
    PageView,
    TenantFilter,
    Time,
    View,
)
from shared.catalog.accounts import ADMIN, Principal
from shared.catalog.buckets import get_bucket
from shared.catalog.models import LocationAudit, ReplicaState
from shared.catalog.replicas.status import (
    ReplicaLine,
    RuleStatus,
    audits,
    list_replicas,
    rule_status,
)

router = APIRouter(tags=["buckets"], route_class=JsonRoute)


class ReplicaView(View):
    """A copy that is to be on a channel."""

    id: int
    tenant_id: str
    blob_id: int
    size: int
    channel: str
    state: str = Field(description="`pending`, `completed`, `failed` or `gone`.")
    reason: str = Field(description="Why it is gone.")
    is_repair: bool = Field(description="It takes the place of a copy that was lost.")
    task_id: int | None
    task_state: str | None
    attempts: int
    next_try_at: Time | None
    error_code: str | None
    error_detail: str | None
    created_at: Time
    pending_since: Time | None
    completed_at: Time | None


class RuleView(View):
    """One rule of a bucket. Whether copies are there is told by what the channels hold."""

    channel: str
    state: str = Field(description="`active`; `removed`: its copies are being let go of.")
    missing: int | None = Field(
        description="Copies that the last whole comparison lacked; null before the first."
    )
    compared_at: Time | None
    pending: int = Field(description="Copies that wait, counted up to 10,000.")
    failed: int
    oldest_pending_at: Time | None
    changed_at: Time


class RuleList(View):
    """A bucket's rules by channel."""

    items: list[RuleView]


class AuditView(View):
    """How far the look at what is really on a channel has come. Counts are of this pass."""

    channel: str
    checked: int
    lost: int
    suspects: int = Field(description="Not as they should be at the last look; asked once more.")
    error_detail: str | None = Field(description="Why the last turn ended early.")
    started_at: Time
    turned_at: Time
    passed_at: Time | None = Field(description="When the last whole pass ended.")


class AuditList(View):
    """All channels that were looked at, by name."""

    items: list[AuditView]


@router.get("/replicas", summary="List copies on other channels")
async def get_replicas(
    caller: CallerDep,
    paging: PagingDep,
    state: Annotated[
        ReplicaState | None, Query(description="Those in this state; else pending and failed.")
    ] = None,
    channel: Annotated[str | None, Query(max_length=64, pattern=NAME_PATTERN)] = None,
    tenant: TenantFilter = None,
) -> PageView[ReplicaView]:
    """Copies that wait or have failed, oldest first, with their next try. Scope `buckets:read`."""

    def work(session: Session, principal: Principal) -> list[ReplicaView]:
        lines = list_replicas(
            session,
            visible_tenant(principal, tenant),
            state=state,
            channel=channel,
            after=paging.cursor or 0,
            limit=paging.rows,
        )
        return [_replica(line) for line in lines]

    return paging.show(await caller.read("buckets:read", work), ReplicaView)


@router.get("/buckets/{bucket}/replicas", summary="Show how far a bucket's copies are")
async def get_bucket_replicas(caller: CallerDep, bucket: BucketName) -> RuleList:
    """Each rule with what is missing, waits and has failed. Scope `buckets:read`."""

    def work(session: Session, principal: Principal) -> list[RuleStatus]:
        return rule_status(session, get_bucket(session, principal.tenant_id, bucket))

    rules = await caller.read("buckets:read", work)
    return RuleList(items=[RuleView.model_validate(rule) for rule in rules])


@router.get("/channel-audits", summary="Show what was found missing on channels", tags=["admin"])
async def get_audits(caller: CallerDep) -> AuditList:
    """How far the scheduler has compared each channel with what it should hold. Scope `admin`."""

    def work(session: Session, _: Principal) -> AuditList:
        return AuditList(items=[_audit(row) for row in audits(session)])

    return await caller.read(ADMIN, work)


def _replica(line: ReplicaLine) -> ReplicaView:
    row = line.replica
    return ReplicaView(
        id=row.id,
        tenant_id=row.tenant_id,
        blob_id=row.blob_id,
        size=line.size_bytes,
        channel=row.channel,
        state=row.state,
        reason=row.reason,
        is_repair=row.lost_location_id is not None,
        task_id=row.task_id,
        task_state=line.task_state,
        attempts=line.attempts,
        next_try_at=line.next_try_at,
        error_code=row.error_code,
        error_detail=row.error_detail,
        created_at=row.created_at,
        pending_since=row.updated_at if row.state == ReplicaState.PENDING else None,
        completed_at=row.completed_at,
    )


def _audit(row: LocationAudit) -> AuditView:
    return AuditView(
        channel=row.channel,
        checked=row.checked,
        lost=row.lost,
        suspects=len(row.suspects or {}),
        error_detail=row.error_detail,
        started_at=row.started_at,
        turned_at=row.turned_at,
        passed_at=row.passed_at,
    )
