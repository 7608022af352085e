"""The list of a bucket's objects."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field
from sqlalchemy.orm import Session

from services.api.deps import CallerDep
from services.api.json_route import JsonRoute
from services.api.routes.puts import BucketName
from services.api.views import Limit, Time, View
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket
from shared.catalog.expiries import due_by_rule, own_times
from shared.catalog.lifecycle import earlier
from shared.catalog.listing import list_objects

router = APIRouter(tags=["objects"], route_class=JsonRoute)


class ListedView(View):
    """One object of a listing."""

    key: str
    size: int
    etag: str
    content_type: str
    modified_at: Time
    version_id: int
    expires_at: Time | None = Field(None, description="When it is to be deleted; null: never.")


class ListingView(View):
    """One page, in the order of the keys' bytes. `next_cursor` is null at the end."""

    items: list[ListedView]
    prefixes: list[str] = Field(description="Keys that share a prefix up to the delimiter.")
    next_cursor: str | None


@router.get("/buckets/{bucket}/objects", summary="List objects")
async def get_objects(
    caller: CallerDep,
    bucket: BucketName,
    prefix: Annotated[str, Query(max_length=1024, description="Only keys beginning so.")] = "",
    delimiter: Annotated[
        str, Query(max_length=64, description="Fold keys that share what stands before this.")
    ] = "",
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
    limit: Limit = 1000,
) -> ListingView:
    """What a GET would find. Prefixes count as entries of the page. Scope `objects:read`."""

    def work(session: Session, principal: Principal) -> ListingView:
        found = get_bucket(session, principal.tenant_id, bucket)
        page = list_objects(
            session, found.id, prefix=prefix, delimiter=delimiter, cursor=cursor, limit=limit
        )
        view = ListingView.model_validate(page)
        own = own_times(session, [item.version_id for item in page.items])
        for item in view.items:
            by_rule = due_by_rule(found, item.key, item.modified_at)
            item.expires_at = earlier(own.get(item.version_id), by_rule)
        return view

    return await caller.read("objects:read", work)
