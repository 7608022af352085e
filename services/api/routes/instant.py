"""Instant uploads: content that is here already, named by its hash."""

from __future__ import annotations

import datetime as dt
import json
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, StringConstraints
from sqlalchemy.orm import Session
from starlette.responses import Response

from services.api.conditions import parse_conditions
from services.api.deps import CallerDep
from services.api.idempotency import Answer, TicketDep
from services.api.json_route import JsonRoute
from services.api.lifetimes import Expires
from services.api.openapi import WRITE_CONDITIONS
from services.api.possession import Proof, check_proof
from services.api.posts import has_answer, write_once
from services.api.routes.puts import BucketName, PutView, put_response
from services.api.uploads import client_metadata
from services.api.views import OrderBody
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket
from shared.catalog.limits import check_key, check_sha256
from shared.catalog.possession import make_challenge
from shared.catalog.puts import instant_upload

router = APIRouter(tags=["objects"], route_class=JsonRoute)


class InstantUpload(Expires):
    """Content by its hash, and the key that it should have."""

    key: str = Field(max_length=1024)
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$")]
    size: int = Field(ge=0, le=2**63 - 1)
    content_type: str | None = Field(None, max_length=255)
    metadata: dict[str, str] = Field(default_factory=dict, max_length=64)
    proof: Proof | None = Field(None, description="Where the bucket wants one.")


class ChallengeOrder(OrderBody):
    """The content that a challenge is wanted for."""

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$")]
    size: int = Field(ge=0, le=2**63 - 1)


class ChallengeView(BaseModel):
    """What to hash: the salt's bytes, then those of the range."""

    token: str = Field(description="To be sent back with the digest.")
    salt: str = Field(description="In hexadecimal.")
    offset: int
    length: int
    expires_at: dt.datetime


@router.post(
    "/buckets/{bucket}/instant-uploads",
    summary="Upload by hash",
    status_code=201,
    response_model=PutView,
    responses={
        200: {"model": PutView, "description": "The key had content before."},
        403: {"description": "`instant_upload_off`, `possession_unproven`, `challenge_expired`."},
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

    In a reviewed bucket it must have passed the present policy. A bucket with `instant_upload`
    `challenge` wants the answer to one (`instant-uploads:challenge`) as `proof`.
    Scope `objects:write`.
    """
    settings = caller.api.deps.settings
    check_key(upload.key, max_bytes=settings.max_key_bytes)
    metadata = client_metadata(upload.metadata, max_bytes=settings.max_metadata_bytes)
    conditions = parse_conditions(request.headers).for_write()
    is_proven = False
    # A proof is good for minutes, the answer under an Idempotency-Key for longer.
    if upload.proof is not None and not await has_answer(caller, "objects:write", ticket):
        await check_proof(
            caller, upload.proof, sha256=check_sha256(upload.sha256), size=upload.size
        )
        is_proven = True

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
            is_proven=is_proven,
            lifetime=upload.lifetime,
        )
        response = put_response(bucket, upload.key, answer)
        return Answer(
            response.status_code, json.loads(bytes(response.body)), released=answer.released
        )

    return await write_once(caller, "objects:write", ticket, work)


@router.post(
    "/buckets/{bucket}/instant-uploads:challenge",
    summary="Ask for a challenge",
    status_code=201,
)
async def post_challenge(
    caller: CallerDep, bucket: BucketName, order: ChallengeOrder
) -> ChallengeView:
    """Which range of a content to hash, with which salt, as the proof of an upload by hash.

    It is given for any content, known here or not, and is good for five minutes. Nothing is
    stored. Scope `objects:write`.
    """
    deps = caller.api.deps

    def work(session: Session, principal: Principal) -> str:
        get_bucket(session, principal.tenant_id, bucket)
        return principal.tenant_id

    tenant_id = await caller.read("objects:write", work)
    challenge = make_challenge(
        deps.secrets,
        tenant_id,
        sha256=check_sha256(order.sha256),
        size=order.size,
        now=deps.clock(),
    )
    return ChallengeView(
        token=challenge.token,
        salt=challenge.salt.hex(),
        offset=challenge.offset,
        length=challenge.length,
        expires_at=dt.datetime.fromtimestamp(challenge.expires_at, dt.UTC),
    )
