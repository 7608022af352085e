"""Buckets: make, change, list, delete."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import Field, field_validator
from sqlalchemy.orm import Session

from services.api.deps import CallerDep
from services.api.json_route import JsonRoute
from services.api.origin_views import OriginView
from services.api.routes.puts import BucketName
from services.api.views import DEFAULT_LIMIT, Limit, NameCursor, Time, View
from shared.catalog.accounts import Principal
from shared.catalog.backup_policy import BackupPolicy
from shared.catalog.buckets import (
    BucketSpec,
    PutBucket,
    delete_bucket,
    get_bucket,
    list_buckets,
    put_bucket,
)
from shared.catalog.lifecycle import Lifecycle
from shared.catalog.models import Bucket
from shared.catalog.origins.vetting import vet_policy
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.webhook_reviewers import check_policy

router = APIRouter(tags=["buckets"], route_class=JsonRoute)


class BucketView(View):
    """A bucket and its rules."""

    name: str
    region: str
    region_fallback_seconds: float | None = Field(
        description="Work goes to the base queue when the region was without consumers so long."
    )
    channels: list[str] = Field(description="Candidate channels, the preferred one first.")
    review_policy: ReviewPolicy | None = Field(description="Null where nothing is reviewed.")
    max_object_bytes: int | None
    instant_upload: str = Field(description="What an upload by hash takes.")
    lifecycle: Lifecycle | None = Field(description="Null where nothing expires by rule.")
    origin: OriginView | None = Field(description="Null where nothing is fetched from elsewhere.")
    backup: BackupPolicy | None = Field(description="Null where nothing is backed up.")
    replica_channels: list[str] = Field(
        description="Channels on which every content is to stand, beside its first copy."
    )
    created_at: Time
    updated_at: Time

    @field_validator("replica_channels", mode="before")
    @classmethod
    def _or_none(cls, value: object) -> object:
        return value or []


class BucketList(View):
    """One page by name. `next_cursor` is null at the end."""

    items: list[BucketView]
    next_cursor: str | None


@router.put(
    "/buckets/{bucket}",
    summary="Make or change a bucket",
    responses={201: {"model": BucketView, "description": "It is new."}},
)
async def put_a_bucket(
    caller: CallerDep, bucket: BucketName, spec: BucketSpec, response: Response
) -> BucketView:
    """Make a bucket or replace its rules, which count for later writes. Scope `buckets:write`.

    With a `review_policy`, content is stored and readable only after its review. When its rules
    change, what is there is reviewed again (`on_change`). A policy that names a reviewer which is
    not registered, or not installed here, is refused.
    """
    deps = caller.api.deps
    if (origin := spec.origin) is not None:
        # Nobody has us look names up who may not change buckets.
        await caller.read("buckets:write", lambda _session, _principal: None)
        await caller.api.work.files(lambda: vet_policy(deps.fetch, origin))

    def work(session: Session, principal: Principal) -> PutBucket:
        check_policy(session, principal.tenant_id, spec.review_policy, deps.optional_reviewers)
        return put_bucket(
            session,
            principal.tenant_id,
            bucket,
            spec,
            catalogue=deps.catalogue,
            secrets=deps.secrets,
        )

    put = await caller.write("buckets:write", work)
    if put.created:
        response.status_code = 201
    return BucketView.model_validate(put.bucket)


@router.get("/buckets/{bucket}", summary="Show a bucket")
async def get_a_bucket(caller: CallerDep, bucket: BucketName) -> BucketView:
    """A bucket of the key's tenant. Scope `buckets:read`."""

    def work(session: Session, principal: Principal) -> Bucket:
        return get_bucket(session, principal.tenant_id, bucket)

    return BucketView.model_validate(await caller.read("buckets:read", work))


@router.delete("/buckets/{bucket}", summary="Delete an empty bucket", status_code=204)
async def delete_a_bucket(caller: CallerDep, bucket: BucketName) -> None:
    """Delete a bucket; a 409 while it holds an object or content in review.

    Scope `buckets:write`.
    """

    def work(session: Session, principal: Principal) -> None:
        delete_bucket(session, principal.tenant_id, bucket)

    await caller.write("buckets:write", work)


@router.get("/buckets", summary="List buckets")
async def get_buckets(
    caller: CallerDep,
    cursor: NameCursor = "",
    limit: Limit = DEFAULT_LIMIT,
) -> BucketList:
    """The buckets of the key's tenant, by name. Scope `buckets:read`."""

    def work(session: Session, principal: Principal) -> list[Bucket]:
        return list_buckets(session, principal.tenant_id, after=cursor, limit=limit + 1)

    found = await caller.read("buckets:read", work)
    return BucketList(
        items=[BucketView.model_validate(bucket) for bucket in found[:limit]],
        next_cursor=found[limit - 1].name if len(found) > limit else None,
    )
