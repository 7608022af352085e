"""PUT of an object: admission before the body, the body into staging, one commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.responses import Response

from services.api.conditions import parse_conditions
from services.api.deps import Api
from services.api.intake import Intake
from services.api.keys import object_key
from services.api.links import LinkOrKeyDep
from services.api.openapi import PUT_HEADERS, RAW_BODY
from services.api.storing import Order, store
from services.api.taking import take_in
from services.api.tracing import trace_parent
from services.api.uploads import Declared, parse_declared
from services.api.views import NAME_PATTERN
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket, way_of
from shared.catalog.models import Bucket
from shared.catalog.puts import PutAnswer
from shared.catalog.regions import region_of
from shared.core.errors import TooLargeError

router = APIRouter(tags=["objects"])

BucketName = Annotated[
    str, Path(max_length=63, pattern=NAME_PATTERN, description="The bucket's name.")
]
KeyPath = Annotated[
    str, Path(description="1 to 1,024 bytes of UTF-8; no NUL, no part `.` or `..`.")
]


class PutView(BaseModel):
    """An acknowledged write."""

    bucket: str
    key: str
    version_id: int
    generation: int = Field(description="Grows with every write and delete of the key.")
    state: str = Field(description="`pending`, `reviewing`, or `stored` when it was known already.")
    task_id: int | None = Field(description="The task that stores or reviews it.")
    etag: str
    size: int


@dataclass(frozen=True, slots=True)
class _Admission:
    bucket_id: int
    tenant_id: str
    queue: str
    region: str
    max_bytes: int


@router.put(
    "/buckets/{bucket}/objects/{key:path}",
    summary="Put an object",
    status_code=202,
    response_model=PutView,
    responses={
        200: {"model": PutView, "description": "Content known already: stored at once."},
        201: {"model": PutView, "description": "The same, under a new key."},
        429: {"description": "Too much work waits already; see Retry-After."},
        507: {"description": "No room in staging."},
    },
    openapi_extra={"requestBody": RAW_BODY, "parameters": PUT_HEADERS},
)
async def put_object(
    request: Request, caller: LinkOrKeyDep, bucket: BucketName, key: KeyPath
) -> Response:
    """Stream a body of any size; it is durable when this answers.

    202 names the task that brings it to its channel (in a reviewed bucket: that reviews it first);
    it can be read meanwhile, unless it is in review. An overwrite supersedes older unfinished work.
    Scope `objects:write`.
    """
    api = caller.api
    settings = api.deps.settings
    name = object_key(request.scope["raw_path"], key, max_bytes=settings.max_key_bytes)
    declared = parse_declared(
        request.scope["headers"], max_metadata_bytes=settings.max_metadata_bytes
    )
    conditions = parse_conditions(request.headers).for_write()
    _check_size(declared, settings.max_object_bytes)

    def admit(session: Session, principal: Principal) -> _Admission:
        found = get_bucket(session, principal.tenant_id, bucket)
        return _admit(api, session, found, declared)

    admission = await caller.read("objects:write", admit)
    intake = caller.bound(
        Intake(
            staging=api.deps.staging,
            declared=declared,
            max_bytes=admission.max_bytes,
            reserve_bytes=api.deps.min_free_bytes,
        )
    )
    order = Order(
        bucket_id=admission.bucket_id,
        key=name,
        declared=declared,
        conditions=conditions,
        trace_parent=trace_parent(request),
    )
    deps = api.deps
    answer = await take_in(
        api,
        request,
        intake,
        lambda staged: store(deps.database, deps.catalogue, deps.staging, staged, order),
    )
    if answer.task_id is not None:
        api.backlog.add(
            queue=admission.queue, region=admission.region, tenant_id=admission.tenant_id
        )
    return put_response(bucket, name, answer)


def put_response(bucket: str, key: str, answer: PutAnswer) -> JSONResponse:
    """Return the answer to a write: 202 while a task stores it, 201 or 200 when it is stored."""
    status = 202 if not answer.instant else 201 if answer.generation == 1 else 200
    headers = {"etag": f'"{answer.etag}"', "x-blox-version": str(answer.version_id)}
    if answer.task_id is not None:
        headers["location"] = f"/v1/tasks/{answer.task_id}"
    view = {
        "bucket": bucket,
        "key": key,
        "version_id": answer.version_id,
        "generation": answer.generation,
        "state": str(answer.state),
        "task_id": answer.task_id,
        "etag": answer.etag,
        "size": answer.size,
    }
    return JSONResponse(view, status_code=status, headers=headers)


def _admit(api: Api, session: Session, bucket: Bucket, declared: Declared) -> _Admission:
    """Judge what can be judged without the body. Raises TooLargeError or BacklogError."""
    most = api.deps.settings.max_object_bytes
    if bucket.max_object_bytes is not None:
        most = min(most, bucket.max_object_bytes)
    _check_size(declared, most)
    way = way_of(bucket)
    api.deps.catalogue.need(*way)
    queue = way[0]
    region = region_of(session, bucket, queue)
    api.backlog.check(session, queue=queue, region=region, tenant_id=bucket.tenant_id)
    return _Admission(bucket.id, bucket.tenant_id, queue, region, most)


def _check_size(declared: Declared, most: int) -> None:
    if declared.size is not None and declared.size > most:
        raise TooLargeError(
            f"objects have at most {most} bytes here, this one {declared.size}",
            max_object_bytes=most,
            size=declared.size,
        )
