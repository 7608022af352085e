"""When an object expires, changed after it was written."""

from __future__ import annotations

import datetime as dt

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.orm import Session

from services.api.conditions import parse_conditions
from services.api.deps import CallerDep
from services.api.idempotency import Answer, TicketDep
from services.api.json_route import JsonRoute
from services.api.keys import object_key
from services.api.lifetimes import Expires
from services.api.openapi import WRITE_CONDITIONS
from services.api.posts import write_once
from services.api.routes.puts import BucketName, KeyPath
from services.api.views import Time
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket
from shared.catalog.expiries import set_expiry
from shared.catalog.models.base import MAX_KEY_BYTES

router = APIRouter(tags=["objects"], route_class=JsonRoute)

EXPIRE = ":expire"


class ExpiryView(BaseModel):
    """When the object is to be deleted now: the earlier of its own time and the bucket's rules."""

    bucket: str
    key: str
    expires_at: Time | None


@router.post(
    "/buckets/{bucket}/objects/{key:path}:expire",
    summary="Change when an object expires",
    response_model=ExpiryView,
    openapi_extra={"parameters": WRITE_CONDITIONS},
)
async def post_expiry(
    request: Request,
    caller: CallerDep,
    bucket: BucketName,
    key: KeyPath,
    order: Expires,
    ticket: TicketDep,
) -> JSONResponse:
    """Give what a key serves a time of its own; with neither field, take it away.

    The bucket's rules count beside it. Scope `objects:write`.
    """
    name = object_key(request.scope["raw_path"], key, max_bytes=MAX_KEY_BYTES, suffix=EXPIRE)
    conditions = parse_conditions(request.headers).for_write()

    def work(session: Session, principal: Principal) -> Answer:
        found = get_bucket(session, principal.tenant_id, bucket)
        due: dt.datetime | None = set_expiry(
            session,
            caller.api.deps.catalogue,
            found.id,
            name,
            lifetime=order.lifetime,
            conditions=conditions,
        )
        view = ExpiryView(bucket=bucket, key=name, expires_at=due)
        return Answer(200, view.model_dump(mode="json"))

    return await write_once(caller, "objects:write", ticket, work)
