"""GET, HEAD and DELETE of an object."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from email.utils import format_datetime

from fastapi import APIRouter, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from services.api.absent import look_up
from services.api.conditions import Verdict, parse_conditions
from services.api.content import ContentMissing, ContentReader, ContentResponse, Place
from services.api.deps import Api, CallerDep
from services.api.doors import opener
from services.api.keys import object_key
from services.api.lifetimes import expiry_header
from services.api.links import LinkOrKeyDep
from services.api.losses import report
from services.api.openapi import RAW_CONTENT, READ_HEADERS, WRITE_CONDITIONS
from services.api.ranges import ByteRange, Unsatisfiable, parse_range
from services.api.routes.puts import BucketName, KeyPath
from services.api.storing import discard
from services.api.uploads import metadata_headers
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket
from shared.catalog.deletes import DeleteAnswer, delete_object
from shared.catalog.models.base import MAX_KEY_BYTES
from shared.catalog.reads import Readable, Source
from shared.core.errors import PreconditionError, RequestError
from shared.core.failpoints import failpoint

router = APIRouter(tags=["objects"])

#: A version may be stored, replaced or swept between its look-up and the first byte, again and
#: again under a key that is overwritten without a pause.
LOOKS = 5


class RangeError(RequestError):
    """The range lies outside the content."""

    code = "range_not_satisfiable"


@router.get(
    "/buckets/{bucket}/objects/{key:path}",
    summary="Get an object",
    response_class=Response,
    responses={
        200: RAW_CONTENT,
        206: {**RAW_CONTENT, "description": "The bytes of the range."},
        302: {"description": "Not here yet: its origin has it."},
        304: {"description": "Not modified."},
        503: {"description": "On its way from its origin; see Retry-After."},
    },
    openapi_extra={"parameters": READ_HEADERS},
)
async def get_object(
    request: Request, caller: LinkOrKeyDep, bucket: BucketName, key: KeyPath
) -> Response:
    """The newest content that may be read: also one that its upload task has not stored yet.

    An absent key that a rule of the bucket lets be fetched from an origin is waited for (a 503 with
    Retry-After when that takes too long), or the client is sent there, or it is a 404 meanwhile.
    Scope `objects:read`.
    """
    name = _key(request, key)
    for look in range(1, LOOKS + 1):
        found = await look_up(request, caller, bucket, name)
        if isinstance(found, Response):
            return found
        answer = _judge(request, found)
        if isinstance(answer, Response):
            return answer
        start, length = (0, found.size) if answer is None else (answer.start, answer.length)
        reader = ContentReader(_places(caller.api, found.sources), start=start, length=length)
        try:
            first = await caller.api.work.files(reader.read)
        except ContentMissing:
            if look == LOOKS:
                await report(caller.api, reader.damaged)
                raise
            continue
        await report(caller.api, reader.damaged)
        headers = _headers(found, length)
        if answer is not None:
            headers["content-range"] = answer.content_range(found.size)
        return ContentResponse(
            reader,
            first,
            work=caller.api.work,
            status=200 if answer is None else 206,
            headers=headers,
            idle_seconds=caller.api.deps.settings.body_idle_seconds,
        )
    raise AssertionError("unreachable")


@router.head(
    "/buckets/{bucket}/objects/{key:path}",
    summary="Ask about an object",
    response_class=Response,
    responses={206: {"description": "About the range."}, 304: {"description": "Not modified."}},
    openapi_extra={"parameters": READ_HEADERS},
)
async def head_object(
    request: Request, caller: LinkOrKeyDep, bucket: BucketName, key: KeyPath
) -> Response:
    """What a GET would answer, without the bytes. Scope `objects:read`."""
    found = await look_up(request, caller, bucket, _key(request, key))
    if isinstance(found, Response):
        return found
    answer = _judge(request, found)
    if isinstance(answer, Response):
        return answer
    headers = _headers(found, found.size if answer is None else answer.length)
    if answer is not None:
        headers["content-range"] = answer.content_range(found.size)
    return Response(status_code=200 if answer is None else 206, headers=headers)


@router.delete(
    "/buckets/{bucket}/objects/{key:path}",
    summary="Delete an object",
    status_code=204,
    response_class=Response,
    responses={204: {"description": "It is not there any more, or was not there before."}},
    openapi_extra={"parameters": WRITE_CONDITIONS},
)
async def delete_an_object(
    request: Request, caller: CallerDep, bucket: BucketName, key: KeyPath
) -> Response:
    """Delete a key; unfinished work on it ends. Its bytes go after the grace, unless shared.

    The header `X-Blox-Task` names the task that deletes them. Scope `objects:write`.
    """
    name = _key(request, key)
    conditions = parse_conditions(request.headers).for_write()
    catalogue = caller.api.deps.catalogue

    def work(session: Session, principal: Principal) -> DeleteAnswer:
        found = get_bucket(session, principal.tenant_id, bucket)
        answer = delete_object(session, catalogue, found.id, name, conditions=conditions)
        failpoint("api.delete.written")
        return answer

    answer = await caller.write("objects:write", work)
    failpoint("api.delete.committed")
    if answer.released:
        staging = caller.api.deps.staging
        await caller.api.work.clean_up(lambda: discard(staging, *answer.released))
    headers = {} if answer.task_id is None else {"x-blox-task": str(answer.task_id)}
    return Response(status_code=204, headers=headers)


def _key(request: Request, matched: str) -> str:
    # The limit on new keys may be narrower by now than when this one was made.
    return object_key(request.scope["raw_path"], matched, max_bytes=MAX_KEY_BYTES)


def _judge(request: Request, found: Readable) -> Response | ByteRange | None:
    """Return an answer without content, the range to send, or None for all of it."""
    conditions = parse_conditions(request.headers)
    verdict = conditions.judge(etag=found.etag, modified_at=found.modified_at)
    if verdict is Verdict.FAILED:
        raise PreconditionError("a condition of the request does not hold", etag=found.etag)
    if verdict is Verdict.NOT_MODIFIED:
        return Response(status_code=304, headers=_validators(found))
    if not conditions.keeps_range(etag=found.etag, modified_at=found.modified_at):
        return None
    try:
        return parse_range(request.headers.get("range"), size=found.size)
    except Unsatisfiable:
        raise RangeError(f"the object has {found.size} bytes", size=found.size) from None


def _places(api: Api, sources: Sequence[Source]) -> list[Place]:
    return [
        Place(opener(api, source.channel), source.key, source.location_id) for source in sources
    ]


def _validators(found: Readable) -> dict[str, str]:
    modified = found.modified_at.replace(tzinfo=dt.UTC)
    return {
        "etag": f'"{found.etag}"',
        "last-modified": format_datetime(modified, usegmt=True),
        "x-blox-version": str(found.version_id),
        "x-blox-state": str(found.state),
        **expiry_header(found.expires_at),
    }


def _headers(found: Readable, length: int) -> dict[str, str]:
    return {
        **metadata_headers(found.metadata),
        **_validators(found),
        "accept-ranges": "bytes",
        "content-type": found.content_type,
        "content-length": str(length),
        "x-blox-sha256": found.sha256,
    }
