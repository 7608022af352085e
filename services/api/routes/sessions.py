"""Resumable uploads: begin, look, complete, give up. Their parts have a file of their own."""

from __future__ import annotations

from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session
from starlette.responses import Response

from services.api.conditions import parse_conditions
from services.api.deps import Api, CallerDep
from services.api.json_route import JsonRoute
from services.api.openapi import WRITE_CONDITIONS
from services.api.storing import REMOVE_SECONDS, discard
from services.api.tracing import trace_parent
from services.api.upload_views import (
    BeginUpload,
    CompleteUpload,
    PartView,
    UploadId,
    UploadView,
    UploadWithParts,
    limits_of,
    part_fields,
    upload_view,
)
from services.api.uploads import client_metadata
from services.api.views import DEFAULT_LIMIT, Cursor, Limit, PageView
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket, way_of
from shared.catalog.limits import check_content_type, check_key
from shared.catalog.models import SessionState
from shared.catalog.regions import region_of
from shared.catalog.uploading.assembly import bucket_of
from shared.catalog.uploading.completing import Completed, complete_session
from shared.catalog.uploading.lists import find_operation, list_sessions
from shared.catalog.uploading.parts import parts_of
from shared.catalog.uploading.removal import remove_session
from shared.catalog.uploading.rules import SessionSpec, check_operation_id
from shared.catalog.uploading.sessions import abort_session, begin_session, find_session
from shared.core.clock import Deadline
from shared.core.errors import BloxError, ConflictError, TooLargeError
from shared.core.failpoints import failpoint

router = APIRouter(tags=["uploads"], route_class=JsonRoute)
log = structlog.get_logger()

QUEUE = "upload"
#: Parts in one page.
MAX_PAGE = 1000


@router.post(
    "/uploads",
    summary="Begin an upload in parts",
    status_code=201,
    response_model=UploadView,
    responses={
        200: {"model": UploadView, "description": "Begun before, under this operation id."},
        409: {"description": "`operation_mismatch`: the id was used for another upload."},
    },
    openapi_extra={"parameters": WRITE_CONDITIONS},
)
async def post_upload(request: Request, caller: CallerDep, upload: BeginUpload) -> JSONResponse:
    """Begin, or find again what was begun under the same `operation_id`, and its result.

    Conditions are judged by `:complete`. Scope `objects:write`.
    """
    api = caller.api
    settings = api.deps.settings
    spec = SessionSpec(
        operation_id=check_operation_id(upload.operation_id),
        key=check_key(upload.key, max_bytes=settings.max_key_bytes),
        size=upload.size,
        sha256=None if upload.sha256 is None else upload.sha256.lower(),
        content_type=check_content_type(upload.content_type),
        metadata=client_metadata(
            upload.metadata, headers=upload.headers, max_bytes=settings.max_metadata_bytes
        ),
        part_bytes=upload.part_bytes,
        lifetime=upload.lifetime,
        conditions=parse_conditions(request.headers).for_write(),
    )

    def work(session: Session, principal: Principal) -> tuple[dict[str, Any], bool]:
        api.deps.catalogue.need(QUEUE)
        if spec.lifetime.is_asked_for:
            api.deps.catalogue.need("delete")
        bucket = get_bucket(session, principal.tenant_id, upload.bucket)
        api.deps.catalogue.need(*way_of(bucket))
        limits = limits_of(settings, bucket.max_object_bytes)
        if spec.size is not None and spec.size > limits.max_object_bytes:
            raise TooLargeError(
                f"objects have at most {limits.max_object_bytes} bytes here, this one {spec.size}",
                max_object_bytes=limits.max_object_bytes,
                size=spec.size,
            )
        begun = begin_session(
            session,
            bucket,
            spec,
            limits,
            admit=lambda: api.backlog.check(
                session,
                queue=QUEUE,
                region=region_of(session, bucket, QUEUE),
                tenant_id=bucket.tenant_id,
            ),
        )
        return upload_view(begun.row, bucket.name), begun.is_new

    view, is_new = await caller.write("objects:write", work)
    headers = {"location": f"/v1/uploads/{view['id']}"}
    return JSONResponse(view, status_code=201 if is_new else 200, headers=headers)


@router.get("/uploads", summary="List uploads in parts", response_model=PageView[UploadView])
async def get_uploads(
    caller: CallerDep,
    state: Annotated[SessionState, Query(description="Those in this state.")] = SessionState.OPEN,
    operation_id: Annotated[
        str | None, Query(max_length=191, description="Only this one, whatever its state.")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> JSONResponse:
    """The newest first. Scope `objects:write`."""

    def work(session: Session, principal: Principal) -> dict[str, Any]:
        if operation_id is not None:
            found = find_operation(session, principal.tenant_id, operation_id)
            return {"items": [] if found is None else [upload_view(*found)], "next_cursor": None}
        page = list_sessions(session, principal.tenant_id, state=state, before=cursor, limit=limit)
        items = [upload_view(row, bucket) for row, bucket in page.items]
        return {"items": items, "next_cursor": page.next_cursor}

    return JSONResponse(await caller.read("objects:write", work))


@router.get(
    "/uploads/{upload_id}", summary="Look at an upload in parts", response_model=UploadWithParts
)
async def get_upload(
    caller: CallerDep,
    upload_id: UploadId,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="Parts behind this one.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
) -> JSONResponse:
    """State, result, and the parts that have come: what a client needs to go on after a break.

    Scope `objects:write`.
    """

    def work(session: Session, principal: Principal) -> dict[str, Any]:
        row = find_session(session, principal.tenant_id, upload_id).row
        page = parts_of(session, row.id, after=after, limit=limit)
        parts = [PartView(**part_fields(part)).model_dump(mode="json") for part in page]
        is_full = len(page) == limit
        return {
            **upload_view(row, bucket_of(session, row)),
            "parts": parts,
            "next_part": page[-1].number if is_full else None,
        }

    return JSONResponse(await caller.read("objects:write", work))


@router.post(
    "/uploads/{upload_id}:complete",
    summary="Complete an upload in parts",
    status_code=202,
    response_model=UploadView,
    responses={
        200: {"model": UploadView, "description": "It is done; `result` names the version."},
        409: {"description": "`upload_failed`, with the reason; or it takes no completion."},
        412: {"description": "A condition does not hold; the upload stays open."},
    },
)
async def complete_upload(
    request: Request,
    caller: CallerDep,
    upload_id: UploadId,
    order: Annotated[CompleteUpload | None, Body()] = None,
) -> JSONResponse:
    """Freeze the parts that count; a task joins them and makes the version.

    This is the write: what comes to the key later wins. Repeated it answers the same, after the end
    with the result. Scope `objects:write`.
    """
    api = caller.api
    wanted = (order or CompleteUpload()).order()

    def work(session: Session, principal: Principal) -> tuple[Completed, dict[str, Any], str]:
        api.deps.catalogue.need(QUEUE)
        region = ""

        def admit(bucket_region: str) -> None:
            nonlocal region
            region = bucket_region
            api.backlog.check(session, queue=QUEUE, region=region, tenant_id=principal.tenant_id)

        completed = complete_session(
            session,
            api.deps.catalogue,
            principal.tenant_id,
            upload_id,
            wanted,
            min_part_bytes=api.deps.settings.min_part_bytes,
            admit=admit,
            trace_parent=trace_parent(request),
        )
        view = upload_view(completed.row, bucket_of(session, completed.row))
        return completed, view, region

    completed, view, region = await caller.write("objects:write", work)
    failpoint("uploads.frozen")
    if completed.is_new:
        api.backlog.add(queue=QUEUE, region=region, tenant_id=completed.row.tenant_id)
    if completed.released:
        released = completed.released
        await api.work.clean_up(lambda: discard(api.deps.staging, *released))
    return _completed(view)


def _completed(view: dict[str, Any]) -> JSONResponse:
    if view["state"] == SessionState.FAILED:
        raise ConflictError(
            "the upload has failed", code="upload_failed", error=view["error"], id=view["id"]
        )
    if view["state"] == SessionState.DONE:
        return JSONResponse(view, headers={"etag": f'"{view["result"]["etag"]}"'})
    return JSONResponse(view, status_code=202, headers={"location": f"/v1/tasks/{view['task_id']}"})


@router.delete(
    "/uploads/{upload_id}",
    summary="Give an upload in parts up",
    status_code=204,
    response_class=Response,
    responses={409: {"description": "`upload_done`: it has become a version."}},
)
async def delete_upload(caller: CallerDep, upload_id: UploadId) -> Response:
    """Remove the parts and then the upload; a task that joins them stops. Scope `objects:write`."""
    api = caller.api

    def work(session: Session, principal: Principal) -> int:
        return abort_session(session, api.deps.catalogue, principal.tenant_id, upload_id).id

    session_id = await caller.write("objects:write", work)
    failpoint("uploads.aborted")
    await api.work.clean_up(lambda: _remove(api, session_id))
    return Response(status_code=204)


def _remove(api: Api, session_id: int) -> None:
    try:
        remove_session(
            api.deps.database, api.deps.staging, session_id, deadline=Deadline(REMOVE_SECONDS)
        )
    except BloxError as error:
        log.warning("aborted_upload_left", session_id=session_id, error=str(error))
