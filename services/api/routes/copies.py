"""Copying and moving objects: by reference where the bytes are there, else by a task."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.responses import Response

from services.api.conditions import parse_conditions
from services.api.deps import Caller, CallerDep
from services.api.idempotency import Answer, Ticket, TicketDep
from services.api.json_route import JsonRoute
from services.api.keys import object_key
from services.api.lifetimes import Expires
from services.api.openapi import WRITE_CONDITIONS
from services.api.posts import write_once
from services.api.routes.puts import BucketName, KeyPath, PutView, put_response
from services.api.uploads import client_metadata
from services.api.views import MAX_ID, NAME_PATTERN, Time, View
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket
from shared.catalog.conditions import Conditions
from shared.catalog.copies import CopyBegun, CopyOrder, copy_object
from shared.catalog.limits import check_key
from shared.catalog.models import Copy
from shared.catalog.models.base import MAX_KEY_BYTES
from shared.catalog.object_copies import find_copy
from shared.catalog.payloads import REPLICA_OBJECT
from shared.core.failpoints import failpoint

router = APIRouter(tags=["objects"], route_class=JsonRoute)

COPY, MOVE = ":copy", ":move"
QUEUE = REPLICA_OBJECT.partition(".")[0]


class Target(Expires):
    """Where the content goes. What is null is kept as the source has it.

    When the source expires goes along with a move, but not with a copy.
    """

    key: str = Field(max_length=1024)
    bucket: str | None = Field(
        None, max_length=63, pattern=NAME_PATTERN, description="Null: the same bucket."
    )
    content_type: str | None = Field(None, max_length=255)
    metadata: dict[str, str] | None = Field(None, max_length=64, description="Replaces all of it.")
    etag: str | None = Field(
        None, max_length=64, description="Only if the target has this ETag now."
    )


class BegunView(BaseModel):
    """A copy whose bytes a task brings to the target's channel first."""

    bucket: str
    key: str
    state: str = Field("copying", description="`copying`: the target has not changed yet.")
    copy_id: int
    task_id: int


class CopyView(View):
    """A copy over channels. `version_id` is what it has written."""

    id: int
    target_key: str
    is_move: bool
    state: str = Field(description="`pending`, `completed`, `failed` or `cancelled`.")
    source_version_id: int
    version_id: int | None
    task_id: int | None
    error_code: str | None
    created_at: Time
    ended_at: Time | None


_RESPONSES: dict[int | str, dict[str, object]] = {
    200: {"model": PutView, "description": "The target's key had content before."},
    202: {"model": BegunView, "description": "The bytes go to another channel first."},
    409: {"description": "`source_not_stored`: not yet; see Retry-After. `object_held`, ..."},
    429: {"description": "Too many copies over channels wait already; see Retry-After."},
}


@router.post(
    "/buckets/{bucket}/objects/{key:path}:copy",
    summary="Copy an object",
    status_code=201,
    response_model=PutView,
    responses=_RESPONSES,
    openapi_extra={"parameters": WRITE_CONDITIONS},
)
async def post_copy(
    request: Request,
    caller: CallerDep,
    bucket: BucketName,
    key: KeyPath,
    target: Target,
    ticket: TicketDep,
) -> Response:
    """Give a key of this tenant the content that another has, without moving bytes.

    `If-Match` is for the source, `If-None-Match: *` for the target. Scope `objects:write`.
    """
    name = object_key(request.scope["raw_path"], key, max_bytes=MAX_KEY_BYTES, suffix=COPY)
    return await _copy(request, caller, bucket, name, target, ticket, is_move=False)


@router.post(
    "/buckets/{bucket}/objects/{key:path}:move",
    summary="Move an object",
    status_code=201,
    response_model=PutView,
    responses=_RESPONSES,
    openapi_extra={"parameters": WRITE_CONDITIONS},
)
async def post_move(
    request: Request,
    caller: CallerDep,
    bucket: BucketName,
    key: KeyPath,
    target: Target,
    ticket: TicketDep,
) -> Response:
    """Copy, and delete the source, in one step: nobody sees both or neither.

    `If-Match` is for the source, `If-None-Match: *` for the target. Scope `objects:write`.
    """
    name = object_key(request.scope["raw_path"], key, max_bytes=MAX_KEY_BYTES, suffix=MOVE)
    return await _copy(request, caller, bucket, name, target, ticket, is_move=True)


@router.get("/buckets/{bucket}/copies/{copy_id}", summary="Show a copy over channels")
async def get_copy(
    caller: CallerDep, bucket: BucketName, copy_id: Annotated[int, Path(ge=1, le=MAX_ID)]
) -> CopyView:
    """A copy or move into this bucket that needed a task. Scope `objects:read`."""

    def work(session: Session, principal: Principal) -> Copy:
        return find_copy(session, get_bucket(session, principal.tenant_id, bucket).id, copy_id)

    return CopyView.model_validate(await caller.read("objects:read", work))


async def _copy(
    request: Request,
    caller: Caller,
    bucket: str,
    key: str,
    target: Target,
    ticket: Ticket | None,
    *,
    is_move: bool,
) -> Response:
    api = caller.api
    settings, catalogue = api.deps.settings, api.deps.catalogue
    check_key(target.key, max_bytes=settings.max_key_bytes)
    metadata = target.metadata
    if metadata is not None:
        metadata = client_metadata(metadata, max_bytes=settings.max_metadata_bytes)
    sent = parse_conditions(request.headers).for_write()
    wanted = None if target.etag is None else (target.etag.strip('"'),)
    into = target.bucket or bucket

    waits: tuple[str, str] | None = None

    def work(session: Session, principal: Principal) -> Answer:
        nonlocal waits

        def admit(region: str) -> None:
            nonlocal waits
            api.backlog.check(session, queue=QUEUE, region=region, tenant_id=principal.tenant_id)
            waits = region, principal.tenant_id

        waits = None
        source_bucket = get_bucket(session, principal.tenant_id, bucket)
        order = CopyOrder(
            source_bucket_id=source_bucket.id,
            source_key=key,
            target_bucket_id=get_bucket(session, principal.tenant_id, into).id,
            target_key=target.key,
            is_move=is_move,
            content_type=target.content_type,
            metadata=metadata,
            lifetime=target.lifetime,
            source_conditions=Conditions(if_match=sent.if_match),
            target_conditions=Conditions(if_match=wanted, if_none_match=sent.if_none_match),
        )
        answer = copy_object(session, catalogue, order, admit=admit)
        failpoint("api.copy.written")
        if isinstance(answer, CopyBegun):
            view = BegunView(
                bucket=into,
                key=target.key,
                state="copying",
                copy_id=answer.copy_id,
                task_id=answer.task_id,
            )
            return Answer(202, view.model_dump(mode="json"))
        response = put_response(into, target.key, answer)
        return Answer(
            response.status_code, json.loads(bytes(response.body)), released=answer.released
        )

    response = await write_once(caller, "objects:write", ticket, work)
    failpoint("api.copy.committed")
    if waits is not None:
        api.backlog.add(queue=QUEUE, region=waits[0], tenant_id=waits[1])
    return response
