"""Instant uploads: content that is here already, named by its hash."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field, StringConstraints
from sqlalchemy.orm import Session
from starlette.responses import Response

from services.api.conditions import parse_conditions
from services.api.deps import CallerDep
from services.api.idempotency import Answer, TicketDep
from services.api.json_route import JsonRoute
from services.api.lifetimes import Expires
from services.api.openapi import WRITE_CONDITIONS
from services.api.posts import write_once
from services.api.routes.puts import BucketName, PutView, put_response
from services.api.storing import discard
from services.api.uploads import client_metadata
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket
from shared.catalog.limits import check_key
from shared.catalog.puts import instant_upload

router = APIRouter(tags=["objects"], route_class=JsonRoute)


class InstantUpload(Expires):
    """Content by its hash, and the key that it should have."""

    key: str = Field(max_length=1024)
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$")]
    size: int = Field(ge=0, le=2**63 - 1)
    content_type: str | None = Field(None, max_length=255)
    metadata: dict[str, str] = Field(default_factory=dict, max_length=64)


@router.post(
    "/buckets/{bucket}/instant-uploads",
    summary="Upload by hash",
    status_code=201,
    response_model=PutView,
    responses={
        200: {"model": PutView, "description": "The key had content before."},
        404: {"description": "`content_unknown`: send the bytes with a PUT."},
    },
    openapi_extra={"parameters": WRITE_CONDITIONS},
)
async def post_instant_upload(
    request: Request,
    caller: CallerDep,
    bucket: BucketName,
    upload: InstantUpload,
    ticket: TicketDep,
) -> Response:
    """Give a key content that this tenant has stored already, without sending it.

    In a reviewed bucket it must have passed the present policy. Scope `objects:write`.
    """
    settings = caller.api.deps.settings
    check_key(upload.key, max_bytes=settings.max_key_bytes)
    metadata = client_metadata(upload.metadata, max_bytes=settings.max_metadata_bytes)
    conditions = parse_conditions(request.headers).for_write()
    released: tuple[str, ...] = ()

    def work(session: Session, principal: Principal) -> Answer:
        found = get_bucket(session, principal.tenant_id, bucket)
        answer = instant_upload(
            session,
            caller.api.deps.catalogue,
            found.id,
            upload.key,
            sha256=upload.sha256,
            size=upload.size,
            content_type=upload.content_type,
            metadata=metadata,
            conditions=conditions,
            lifetime=upload.lifetime,
        )
        nonlocal released
        released = answer.released
        response = put_response(bucket, upload.key, answer)
        return Answer(response.status_code, json.loads(bytes(response.body)))

    response = await write_once(caller, "objects:write", ticket, work)
    if released:
        staging = caller.api.deps.staging
        await caller.api.work.clean_up(lambda: discard(staging, *released))
    return response
